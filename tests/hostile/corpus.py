"""Hostile envelopes: what an enemy, a sloppy producer or an old framework writes. Every surface is run over
all of them (`test_surfaces.py`); add a body here and all surfaces meet it.

`accepted` says what the contract makes of a body, written down here by hand and not asked of our own code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

URN = "urn:babel:hostile:sent"
CREATED_MS = 1_790_000_000_000

#: Field names. The first ones stopped the pipeline once.
KEYS = {
    "quote": 'say "hi"',
    "backslash": "App\\Models\\User",
    "php-private": "\0App\\User\0password",
    "control": "a\x01b\x1fc",
    "newline": "a\nb\r\nc",
    "empty": "",
    "blank": " ",
    "dot": "a.b.c",
    "backtick": "a`b`c",
    "bracket": "a[0]{b}(c)<d>",
    "comma": "a,b;c=d",
    "slash": "a/b~c~1d",
    "percent": "100%_%s%n{0}",
    "emoji": "👍🏽",
    "bidi": "\u202egnp.exe\u202c",
    "zero-width": "a\u200bb\ufeffc",
    "nbsp": "\u00a0a\u3000",
    "dotless-i": "İıI",
    "sharp-s": "Straße",
    "combining": "e\u0301",
    "proto": "__proto__",
    "reserved-id": "id",
    "reserved-urn": "urn",
    "reserved-batch": "_batch",
    "sql": "'; DROP TABLE messages; --",
    "jndi": "${jndi:ldap://127.0.0.1/x}",
    "html": "<script>alert(1)</script>",
    "formula": "=cmd|' /C calc'!A0",
    "escape-sequence": "\x1b[2J\x1b]52;c;ZXZpbA==\x07",
    "c1": "\x9b31m",
    "long": "k" * 5_000,
}

#: Texts that stand where a person or a terminal will read them: URN, trace, language, error, queue.
TEXTS = {
    "clear-screen": "\x1b[2J\x1b[H",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "c1": "\x9b31mred\x9b0m",
    "forged-line": "ok\r\n2026-11-16 00:00:00 INFO everything is fine",
    "bidi": "\u202etxt.exe\u202c",
    "separator": "a\u2028b\u2029c",
    "script": "</script><script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "template": "{{7*7}}${7*7}<%= 7*7 %>%s%n{0}",
    "markup": "[link](javascript:alert(1))",
    "null": "a\0b",
    "long": "x" * 20_000,
}

#: JSON texts of numbers, with whether the contract takes them inside `data`.
NUMBERS = {
    "beyond-double": ("9007199254740993", True),
    "int64-max": ("9223372036854775807", True),
    "uint64-max": ("18446744073709551615", True),
    "thirty-digits": ("123456789012345678901234567890", True),
    "three-hundred-digits": ("9" * 300, True),
    "too-many-digits": ("9" * 5_000, False),
    "infinite": ("1e400", False),
    "minus-infinite": ("-1e400", False),
    "denormal": ("5e-324", True),
    "largest": ("1.7976931348623157e308", True),
    "minus-zero": ("-0", True),
    "minus-zero-float": ("-0.0", True),
    "trailing-zeros": ("1.50", True),
    "exponent": ("1E2", True),
    "forty-decimals": ("0." + "1" * 40, True),
    "nan": ("NaN", False),
    "leading-zero": ("01", False),
}


@dataclass(frozen=True)
class Hostile:
    name: str
    body: bytes
    accepted: bool = True

    @property
    def id(self) -> str:
        return f"hostile-{self.name}"

    @property
    def data(self) -> object:
        """The payload as planted, numbers as text, so that nothing is rounded in the comparison."""
        return json.loads(self.body, parse_int=str, parse_float=str)["data"]


def text(name: str, data: str = "{}", **fields: str) -> bytes:
    """An envelope as JSON text, member by member, so that a test decides every byte of it."""
    members = {
        "job": json.dumps(URN),
        "trace_id": json.dumps(f"trace-{name}"),
        "data": data,
        "meta": json.dumps(
            {
                "id": f"hostile-{name}",
                "queue": "hostile",
                "lang": "php",
                "schema_version": 1,
                "created_at": CREATED_MS,
            }
        ),
        "attempts": "0",
        **fields,
    }
    return ("{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}").encode()


def _dead(error: str, **fields: object) -> str:
    block = {
        "reason": "failed",
        "error": error,
        "exception": "RuntimeException",
        "failed_at": CREATED_MS,
        "original_queue": "hostile",
        "attempts": 3,
        "lang": "php",
    }
    return json.dumps({**block, **fields})


def _nested(open_: str, close: str, depth: int, inner: str = "1") -> str:
    return open_ * depth + inner + close * depth


def _keys() -> Iterator[Hostile]:
    for name, key in KEYS.items():
        yield Hostile(f"key-{name}", text(f"key-{name}", json.dumps({key: 1, "plain": name})))
        inner = json.dumps({"o": {key: {"deep": True}}, "l": [{key: None}]}, ensure_ascii=False)
        yield Hostile(f"inner-key-{name}", text(f"inner-key-{name}", inner))
    folding = {"Order Id": 1, "order_id": 2, "ORDER-ID": 3, "order id": 4, "ORDER_ID": 5}
    yield Hostile("keys-that-fold", text("keys-that-fold", json.dumps(folding)))
    yield Hostile("surrogate-key", text("surrogate-key", '{"\\ud800":1}'))
    yield Hostile("twice", text("twice", '{"a":1,"a":"2","b":{"c":1},"b":[]}'))
    many = {f"k{n}": n for n in range(3_000)}
    yield Hostile("three-thousand-keys", text("three-thousand-keys", json.dumps(many)))


def _values() -> Iterator[Hostile]:
    for name, (number, taken) in NUMBERS.items():
        yield Hostile(f"number-{name}", text(f"number-{name}", f'{{"n":{number},"l":[{number}]}}'), taken)
    for depth in (50, 100, 350, 800):
        yield Hostile(f"list-{depth}-deep", text(f"list-{depth}-deep", f'{{"x":{_nested("[", "]", depth)}}}'))
        deep = _nested('{"x":', "}", depth)
        yield Hostile(f"object-{depth}-deep", text(f"object-{depth}-deep", deep))
    bottomless = f'{{"x":{_nested("[", "]", 100_000)}}}'
    yield Hostile("bottomless", text("bottomless", bottomless), accepted=False)
    yield Hostile("lone-surrogate", text("lone-surrogate", '{"x":"half \\ud83d"}'))
    yield Hostile("nul", text("nul", '{"x":"a\\u0000b"}'))
    yield Hostile("large-text", text("large-text", json.dumps({"x": "y" * 200_000})))
    yield Hostile("long-list", text("long-list", json.dumps({"x": list(range(20_000))})))
    yield Hostile("mixed-list", text("mixed-list", '{"x":[1,"a",null,true,{"b":[]},[[]],1.5]}'))
    for name, value in {
        "number": "7",
        "text": '"7"',
        "list": "[7]",
        "object": '{"7":7}',
        "null": "null",
    }.items():
        yield Hostile(f"clash-{name}", text(f"clash-{name}", f'{{"amount":{value}}}'))


def _texts() -> Iterator[Hostile]:
    for name, value in TEXTS.items():
        shown = json.dumps(value)
        yield Hostile(f"urn-{name}", text(f"urn-{name}", job=json.dumps(f"urn:babel:{value}")))
        yield Hostile(f"trace-{name}", text(f"trace-{name}", trace_id=shown))
        yield Hostile(f"data-{name}", text(f"data-{name}", json.dumps({"note": value, "email": value})))
        meta = {"id": f"hostile-lang-{name}", "queue": value, "lang": value, "schema_version": 1}
        yield Hostile(
            f"lang-{name}", text(f"lang-{name}", meta=json.dumps({**meta, "created_at": CREATED_MS}))
        )
        dead = _dead(value, exception=value)
        yield Hostile(f"dead-{name}", text(f"dead-{name}", attempts="3", dead_letter=dead))


def _shapes() -> Iterator[Hostile]:
    good = text("x")
    yield Hostile("empty", b"", accepted=False)
    yield Hostile("blank", b" \r\n", accepted=False)
    yield Hostile("not-json", b'O:8:"stdClass":0:{}', accepted=False)
    yield Hostile("cut-off", good[:-20], accepted=False)
    yield Hostile("two", good + good, accepted=False)
    yield Hostile("trailing", good + b" x", accepted=False)
    yield Hostile("bom", b"\xef\xbb\xbf" + good, accepted=False)
    yield Hostile("utf-16", good.decode().encode("utf-16"), accepted=False)
    yield Hostile("latin-1", text("latin-1", '{"x":"größe"}').decode().encode("latin-1"), accepted=False)
    yield Hostile("overlong", good.replace(b"hostile-x", b"hostile-\xc0\xaf"), accepted=False)
    yield Hostile("encoded-surrogate", good.replace(b"hostile-x", b"hostile-\xed\xa0\x80"), accepted=False)
    yield Hostile("single-quotes", good.replace(b'"', b"'"), accepted=False)
    yield Hostile("data-list", text("data-list", "[1,2]"), accepted=False)
    yield Hostile("data-text", text("data-text", '"{}"'), accepted=False)
    yield Hostile("php-empty-data", text("php-empty-data", "[]"), accepted=False)
    yield Hostile("attempts-text", text("attempts-text", attempts='"0"'), accepted=False)
    yield Hostile("attempts-huge", text("attempts-huge", attempts="9" * 30), accepted=False)
    yield Hostile("no-identity", text("no-identity", job='""'), accepted=False)
    yield Hostile("version-two", good.replace(b'"schema_version": 1', b'"schema_version": 2'), accepted=False)
    yield Hostile("binary", bytes(range(256)) * 4, accepted=False)
    yield Hostile("zip-bomb", b"[" * 2_000_000, accepted=False)
    noise = random.Random(7)
    yield Hostile("noise", bytes(noise.randrange(256) for _ in range(4_000)), accepted=False)
    padded = b" \n" + text("padded", '{"x" :\t1}') + b"\n "
    yield Hostile("padded", padded)


CORPUS: tuple[Hostile, ...] = (*_keys(), *_values(), *_texts(), *_shapes())
ACCEPTED = tuple(hostile for hostile in CORPUS if hostile.accepted)
REFUSED = tuple(hostile for hostile in CORPUS if not hostile.accepted)
DEAD = tuple(hostile for hostile in CORPUS if hostile.name.startswith("dead-"))
