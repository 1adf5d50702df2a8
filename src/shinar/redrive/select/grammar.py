"""The grammar behind `--where` and `--set`: a text becomes SQL for SQLite, or an error that says why.

Recursive descent over a closed list of columns, functions and operators, so that nothing of the text
reaches SQLite as it was written. Every node knows its kind, because SQLite would compare anything.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from shinar.errors import ConfigError

Kind = Literal["text", "number", "time", "bool", "any", "null"]

#: Names an expression may use, and what each holds.
COLUMNS: Final[dict[str, Kind]] = {
    "urn": "text",
    "exception": "text",
    "error": "text",
    "reason": "text",
    "lang": "text",
    "queue": "text",
    "original_queue": "text",
    "created_at": "time",
    "failed_at": "time",
    "attempts": "number",
    "id": "text",
    "trace_id": "text",
    "fingerprint": "text",
}
#: Name of the payload; `data.order.id` and `data.items[0].sku` reach into it.
PAYLOAD: Final = "data"

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>\d+\.\d+(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)
    | (?P<sign><=>|<>|!=|<=|>=|==|\|\||[=<>+\-*/%(),.\[\]])
    )""",
    re.X | re.S,
)
_ESCAPES: Final = {"\\": "\\", "'": "'", '"': '"', "%": "\\%", "_": "\\_"}
_COMPARES: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
#: function -> (arguments least, most, SQL with {0}…, kind of the result)
_FUNCTIONS: Final[dict[str, tuple[int, int, str, Kind]]] = {
    "lower": (1, 1, "uni_lower({0})", "text"),
    "upper": (1, 1, "uni_upper({0})", "text"),
    "length": (1, 1, "length({0})", "number"),
    "trim": (1, 1, "trim({0})", "text"),
    "substr": (2, 3, "substr({all})", "text"),
    "substring": (2, 3, "substr({all})", "text"),
    "coalesce": (2, 9, "coalesce({all})", "any"),
    "abs": (1, 1, "abs({0})", "number"),
    "round": (1, 2, "round({all})", "number"),
    "contains": (2, 2, "instr({0}, {1}) > 0", "bool"),
    "startswith": (2, 2, "substr({0}, 1, length({1})) = {1}", "bool"),
    "endswith": (2, 2, "substr({0}, max(1, length({0}) - length({1}) + 1)) = {1}", "bool"),
}
_TEXT_FUNCTIONS: Final = frozenset(_FUNCTIONS) - {"coalesce", "abs", "round"}


class Node(NamedTuple):
    sql: str
    kind: Kind
    #: The value of a text literal, so that it can become a time or a number.
    literal: str | None = None


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def moment_ms(text: str, setting: str) -> int:
    """A date and time as epoch milliseconds; UTC unless it says otherwise."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{text!r} is no date and time; write 2026-11-15 02:10:00", setting=setting
        ) from None
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return round(value.timestamp() * 1000)


class Parser:
    """Recursive descent, one method per level of binding, loosest first."""

    def __init__(self, text: str, setting: str) -> None:
        self._text, self._setting = text, setting
        self._tokens = self._split(text)
        self._at = 0
        self.columns: set[str] = set()
        self.only_path: tuple[str | int, ...] | None = None

    def whole(self) -> Node:
        if self._peek().kind == "end":
            raise self._error("is empty")
        node = self._or()
        if self._peek().kind != "end":
            raise self._error(f"unexpected {self._peek().text!r}")
        return node

    # -- reading

    def _split(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"cannot be read at {text[at:].strip()[:20]!r}")
            kind = match.lastgroup or ""
            tokens.append(Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return [*tokens, Token("end", "", at)]

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._text!r}: {text}", setting=self._setting)

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _word(self, *words: str, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token.kind == "name" and token.text.lower() in words

    def _take(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _skip(self, text: str) -> bool:
        token = self._peek()
        if token.kind in ("sign", "name") and token.text.lower() == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._error(f"expected {text!r} instead of {self._peek().text or 'the end'!r}")

    # -- levels

    def _or(self) -> Node:
        node = self._and()
        while self._skip("or"):
            node = Node(f"({self._truth(node)} OR {self._truth(self._and())})", "bool")
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._skip("and"):
            node = Node(f"({self._truth(node)} AND {self._truth(self._not())})", "bool")
        return node

    def _not(self) -> Node:
        if self._skip("not"):
            return Node(f"(NOT {self._truth(self._not())})", "bool")
        return self._predicate()

    def _truth(self, node: Node) -> str:
        if node.kind not in ("bool", "any", "null"):
            raise self._error("AND, OR and NOT join conditions, not values")
        # A member of the payload is a condition if it holds true or false; anything else is unknown.
        return f"(CASE {node.sql} WHEN 1 THEN 1 WHEN 0 THEN 0 END)" if node.kind == "any" else node.sql

    def _predicate(self) -> Node:
        left = self._sum()
        token = self._peek()
        if token.text in _COMPARES:
            self._take()
            return self._compare(left, _COMPARES[token.text], self._sum())
        if token.text == "<=>":
            self._take()
            return self._compare(left, "IS", self._sum())
        if self._skip("is"):
            negated = "NOT " if self._skip("not") else ""
            self._expect("null")
            return Node(f"({left.sql} IS {negated}NULL)", "bool")
        negated = "NOT " if self._word("not") and self._word("like", "in", "between", ahead=1) else ""
        if negated:
            self._take()
        if self._skip("like"):
            return self._like(left, negated, self._sum())
        if self._skip("in"):
            return self._in(left, negated)
        if self._skip("between"):
            low = self._sum()
            self._expect("and")
            bounds = f"{self._compare(left, '>=', low).sql} AND {self._compare(left, '<=', self._sum()).sql}"
            return Node(f"({negated}({bounds}))", "bool")
        return left

    def _compare(self, left: Node, sign: str, right: Node) -> Node:
        left, right = self._alike(left, right)
        right, left = self._alike(right, left)
        return Node(f"({left.sql} {sign} {right.sql})", "bool")

    def _alike(self, one: Node, other: Node) -> tuple[Node, Node]:
        """`other` made comparable to `one`, or an error: SQLite itself would compare anything."""
        kinds = (one.kind, other.kind)
        if kinds == ("time", "text"):
            if other.literal is None:
                raise self._error("a time is compared with a text such as '2026-11-15 02:10:00'")
            return one, Node(str(moment_ms(other.literal, self._setting)), "time")
        if kinds == ("number", "any"):
            return one, Node(f"as_number({other.sql})", "number")
        if kinds == ("text", "any"):
            return one, Node(f"as_text({other.sql})", "text")
        if kinds == ("number", "text"):
            if other.literal is None or not re.fullmatch(r"\s*[-+]?\d+(\.\d+)?\s*", other.literal):
                raise self._error("a number is compared with a text")
            return one, Node(other.literal.strip(), "number")
        if "time" in kinds and other.kind not in ("time", "null") and one.kind == "time":
            raise self._error("a time is compared with a text such as '2026-11-15 02:10:00'")
        return one, other

    def _like(self, left: Node, negated: str, pattern: Node) -> Node:
        if pattern.literal is None:
            raise self._error("LIKE wants a text on its right")
        _, left = self._alike(Node("''", "text", ""), left)
        if left.kind != "text":
            raise self._error("LIKE looks at a text")
        return Node(f"({left.sql} {negated}LIKE {pattern.sql} ESCAPE '\\')", "bool")

    def _in(self, left: Node, negated: str) -> Node:
        self._expect("(")
        tests = [self._compare(left, "=", self._sum()).sql]
        while self._skip(","):
            tests.append(self._compare(left, "=", self._sum()).sql)
        self._expect(")")
        return Node(f"({negated}({' OR '.join(tests)}))", "bool")

    def _sum(self) -> Node:
        node = self._product()
        while self._peek().text in ("+", "-", "||"):
            sign = self._take().text
            right = self._product()
            if sign == "||":
                node = Node(f"({node.sql} || {right.sql})", "text")
            else:
                node = Node(f"({self._number(node)} {sign} {self._number(right)})", "number")
        return node

    def _product(self) -> Node:
        node = self._unary()
        while self._peek().text in ("*", "/", "%"):
            sign = self._take().text
            right = self._number(self._unary())
            factor = "* 1.0 /" if sign == "/" else sign
            node = Node(f"({self._number(node)} {factor} {right})", "number")
        return node

    def _number(self, node: Node) -> str:
        if node.kind == "any":
            return f"as_number({node.sql})"
        if node.kind not in ("number", "null"):
            raise self._error("arithmetic is for numbers")
        return node.sql

    def _unary(self) -> Node:
        if self._skip("-"):
            return Node(f"(-{self._number(self._unary())})", "number")
        return self._primary()

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "number":
            return Node(token.text, "number")
        if token.kind == "text":
            return self._literal(token)
        if token.text == "(":
            node = self._or()
            self._expect(")")
            return node._replace(sql=f"({node.sql})")
        if token.kind == "name":
            return self._name(token)
        raise self._error(f"unexpected {token.text or 'end'!r}")

    def _literal(self, token: Token) -> Node:
        quote, inside = token.text[0], token.text[1:-1]
        value = re.sub(r"\\(.)|''", self._unescape, inside, flags=re.S) if quote == "'" else re.sub(
            r"\\(.)", self._unescape, inside, flags=re.S
        )  # fmt: skip
        if "\0" in value:
            raise self._error("a text has no NUL in it")
        return Node("'" + value.replace("'", "''") + "'", "text", value)

    def _unescape(self, match: re.Match[str]) -> str:
        if match[0] == "''":
            return "'"
        if match[1] not in _ESCAPES:
            raise self._error(f"{match[0]!r} in a text: write two backslashes for one, as in Spark SQL")
        return _ESCAPES[match[1]]

    def _name(self, token: Token) -> Node:
        name = token.text.strip("`").lower()
        if name in ("true", "false"):
            return Node("1" if name == "true" else "0", "bool")
        if name == "null":
            return Node("NULL", "null")
        if name in ("timestamp", "date") and self._peek().kind == "text":
            text = self._literal(self._take()).literal or ""
            return Node(str(moment_ms(text, self._setting)), "time")
        if self._peek().text == "(":
            return self._call(name)
        if name == PAYLOAD:
            return self._member()
        if name not in COLUMNS:
            known = ", ".join([*COLUMNS, "data.field"])
            raise self._error(f"there is no column {token.text!r}; known: {known}")
        self.columns.add(name)
        return Node(name, COLUMNS[name])

    def _call(self, name: str) -> Node:
        if name not in _FUNCTIONS:
            raise self._error(f"there is no function {name!r}; known: {', '.join(_FUNCTIONS)}")
        least, most, sql, kind = _FUNCTIONS[name]
        self._expect("(")
        given = [self._or()]
        while self._skip(","):
            given.append(self._or())
        self._expect(")")
        if not least <= len(given) <= most:
            raise self._error(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        texts = [
            f"as_text({node.sql})" if node.kind == "any" and name in _TEXT_FUNCTIONS else node.sql
            for node in given
        ]
        return Node(f"({sql.format(*texts, all=', '.join(texts))})", kind)

    def _member(self) -> Node:
        path: list[str | int] = []
        start = self._at - 1
        while True:
            if self._skip("."):
                token = self._take()
                if token.kind != "name":
                    raise self._error("a member's name follows the dot; quote odd ones as `a-b`")
                path.append(token.text.strip("`"))
            elif self._skip("["):
                path.append(int(self._take().text) if self._peek().text.isdigit() else self._bad_index())
                self._expect("]")
            else:
                break
        if not path:
            raise self._error("name a member of the payload: data.field")
        if start == 0 and self._peek().kind == "end":
            self.only_path = tuple(path)
        self.columns.add(PAYLOAD)
        steps = "".join(f"[{part}]" if isinstance(part, int) else f'."{part}"' for part in path)
        return Node("json_extract(data, '$" + steps.replace("'", "''") + "')", "any")

    def _bad_index(self) -> int:
        raise self._error("an index is a number: data.items[0]")
