"""The text of an expression as tokens: sqlglot makes them, and a closed list says which may be there."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported by sqlglot

from shinar.errors import ConfigError

#: Longest expression; a list of 1,500 ids fits.
MAX_CHARS: Final = 65_536
MAX_TOKENS: Final = 10_000
#: Open parentheses and brackets: more than a person writes, less than sqlglot's recursion takes.
MAX_BRACKETS: Final = 24

T = TokenType
_OPERATORS: Final = frozenset(
    {T.EQ, T.NEQ, T.LT, T.LTE, T.GT, T.GTE, T.NULLSAFE_EQ, T.PLUS, T.DASH, T.STAR, T.SLASH, T.MOD, T.DPIPE}
    | {T.DCOLON, T.DOT, T.COMMA, T.L_PAREN, T.R_PAREN, T.L_BRACKET, T.R_BRACKET}
)
_WORDS: Final = frozenset(
    {
        T.AND,
        T.OR,
        T.NOT,
        T.LIKE,
        T.ESCAPE,
        T.IN,
        T.BETWEEN,
        T.IS,
        T.NULL,
        T.TRUE,
        T.FALSE,
        T.ALIAS,
        T.DISTINCT,
    }
    | {T.FROM, T.VAR, T.IDENTIFIER, T.STRING, T.NUMBER}
)
_TYPE_WORDS: Final = frozenset(
    {T.BOOLEAN, T.INT, T.BIGINT, T.DOUBLE, T.DECIMAL, T.TEXT, T.DATE, T.TIMESTAMP, T.TIMESTAMPTZ}
)
_ALLOWED: Final = _OPERATORS | _WORDS | _TYPE_WORDS
_OPENING: Final = frozenset({T.L_PAREN, T.L_BRACKET})
_CLOSING: Final = frozenset({T.R_PAREN, T.R_BRACKET})
#: Escapes of a Spark string literal. Any other backslash is most likely one that was not doubled.
_ESCAPES: Final = {"\\": "\\", "'": "'", '"': '"', "%": "\\%", "_": "\\_", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED: Final = re.compile(r"\\(.?)|(''|\"\")", re.DOTALL)


class Refused(NamedTuple):
    """Builds the error for a text: what is wrong, and where."""

    text: str
    setting: str

    def at(self, position: int | None, why: str) -> ConfigError:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}…"
        where = "" if position is None else f", character {position + 1}"
        return ConfigError(f"{shown!r}{where}: {why}", setting=self.setting)


def checked(tokens: list[Token], refused: Refused) -> list[Token]:
    if not tokens:
        raise refused.at(None, "is empty; write a condition such as lang = 'php'")
    if len(tokens) > MAX_TOKENS:
        raise refused.at(None, f"has {len(tokens):,} parts; an expression may have {MAX_TOKENS:,}")
    found: list[Token] = []
    depth = 0
    for token in tokens:
        kind = token.token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth > MAX_BRACKETS:
            raise refused.at(
                token.start, f"is nested too deeply: more than {MAX_BRACKETS} parentheses are open"
            )
        before = found[-1] if found else None
        if before is not None and before.token_type is T.DOT and re.fullmatch(r"\w+", token.text):
            token.token_type = T.VAR  # a member may be called `from` or `order`
        elif kind is T.STRING:
            token.text = _unescaped(token, refused)
            if before is not None and before.token_type is T.STRING:
                _join(before, token)
                continue
        else:
            _require_allowed(token, refused)
        found.append(token)
    return found


def _require_allowed(token: Token, refused: Refused) -> None:
    if token.token_type is T.DCOLON and refused.text[token.start : token.end + 1] != "::":
        raise refused.at(token.start, "a number with a suffix is not supported; use CAST")
    if token.token_type not in _ALLOWED:
        raise refused.at(token.start, f"{token.text!r} is not supported")


def _join(before: Token, token: Token) -> None:
    """'it''s' arrives as two tokens that touch; 'a' 'b' are two literals that Spark joins."""
    before.text += ("'" if before.end + 1 == token.start else "") + token.text
    before.end = token.end


def _unescaped(token: Token, refused: Refused) -> str:
    raw = refused.text[token.start : token.end + 1]
    quote, inside = raw[:1], raw[1:-1]

    def plain(match: re.Match[str]) -> str:
        if match[2] is not None:
            return match[2] if match[2][0] != quote else quote
        if match[1] not in _ESCAPES:
            why = f"\\{match[1]} is not an escape that is supported; write two backslashes for one"
            raise refused.at(token.start + 1 + match.start(), why)
        return _ESCAPES[match[1]]

    return _ESCAPED.sub(plain, inside)
