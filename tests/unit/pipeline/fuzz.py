"""Bodies that try to make a fast judge differ from the exact one. Deterministic per seed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator

VALUES = [
    "null",
    "true",
    "0",
    "-0",
    "1",
    "-1",
    "1.0",
    "1e0",
    "1E2",
    "1e400",
    "-1e400",
    "1e+400",
    "1E0400",
    "1e-400",
    "1e308",
    "1e309",
    "1.7976931348623157e308",
    "2e308",
    "1e99",
    "0.1",
    "01",
    "1.",
    ".5",
    "+1",
    "-",
    "1e",
    "NaN",
    "Infinity",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "9" * 308,
    "9" * 309,
    "1" * 400,
    "1" * 5000,
    "1" * 215 + "e99",
    "1" * 205 + "e99",
    "0." + "0" * 400 + "1",
    "1" + "0" * 308 + ".5",
    "-" + "1" * 310,
    '""',
    '" "',
    '"\\u0020"',
    '"\u00a0"',
    '"\u2003"',
    '"urn:babel:a:b"',
    '"1e400"',
    '": 1e400"',
    '", -1e999 ,"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\ud834\\udd1e"',
    '"\\u0000"',
    '"\\/"',
    '"\\q"',
    '"\x01"',
    '"a\nb"',
    '"\x7f"',
    '"größer"',
    '"日本"',
    "'a'",
    "{}",
    "[]",
    "[1,2]",
    '{"x":1e400}',
    '{"x":[1,{"y":"\\ud800"}]}',
    "[" * 50 + "]" * 50,
    "{",
    "tru",
    "[1,]",
    '{"a":1,}',
    '{"a":1 "b":2}',
    '{"a":1e400,"a":1}',
    '{"data":{"data":1}}',
    '"' + "1" * 400 + '"',
    '"' + "e123" * 40 + '"',
    "0e999",
    "0.0e400",
    "-0.0E+999",
    "[1e5,2e10]",
    "[ 1e400]",
    "\t1e400",
    "[-1e400]",
]
NAMES = [
    "job",
    "urn",
    "trace_id",
    "data",
    "meta",
    "attempts",
    "dead_letter",
    "timestamp",
    "JOB",
    "Data",
    "ext",
    "",
    "__shinar_extra__",
    "extra",
    "\\u006aob",
    "d\\u0061ta",
    "\\ud800",
]
META = [
    "id",
    "queue",
    "lang",
    "schema_version",
    "created_at",
    "attempts",
    "max_retries",
    "source",
    "ts",
    "ext",
    "extra",
]
DEAD = ["reason", "error", "exception", "failed_at", "original_queue", "attempts", "lang", "odd"]
BYTES = [
    b"\xff",
    b"\xc3",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\x80",
    b"\xf0\x9f\x98\x80",
    b"\xf0\x9f",
    b"\x00",
    b"\xef\xbb\xbf",
    b" ",
    b"\n",
    b"\x0b",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b",",
    b":",
    b"e",
    b"E400",
    b"1e400",
    b"9" * 320,
    b"\\ud800",
    b"x",
]


def canonical(rng: random.Random) -> dict[str, str]:
    """Members of a good envelope as JSON text by name."""
    key = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    data = {
        "id": rng.randrange(10**9),
        "who": str(uuid.UUID(int=rng.getrandbits(128))),
        "note": rng.choice(["", "ü", "日本"]),
    }
    if rng.random() < 0.3:
        data["lines"] = [
            {"sku": f"1e{rng.randrange(999)}", "qty": rng.random() * 10 ** rng.randrange(-300, 300)}
        ]
    meta = {
        "id": key,
        "queue": "orders",
        "lang": "go",
        "schema_version": rng.choice([1] * 20 + [2, 0]),
        "created_at": rng.choice([1760000000000, 0, -5, 2**62]),
    }
    dump = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=rng.random() < 0.5)  # noqa: E731  # short
    members = {
        "job": '"urn:babel:orders:created"',
        "trace_id": f'"{key}"',
        "data": dump(data),
        "meta": dump(meta),
        "attempts": "0",
    }
    if rng.random() < 0.1:
        members["dead_letter"] = dump(
            {
                "reason": "failed",
                "error": "no",
                "exception": "E",
                "failed_at": 1760000000001,
                "original_queue": "orders",
                "attempts": 3,
                "lang": "php",
            }
        )
    return members


def _object(rng: random.Random, names: list[str]) -> str:
    picked = [(rng.choice(names), rng.choice(VALUES)) for _ in range(rng.randrange(6))]
    return "{" + ",".join(f'"{name}":{value}' for name, value in picked) + "}"


def body(rng: random.Random) -> bytes:
    members = list(canonical(rng).items())
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        kind = rng.randrange(7)
        if kind == 0:
            members.insert(rng.randrange(len(members) + 1), (rng.choice(NAMES), rng.choice(VALUES)))
        elif kind == 1:
            members.insert(rng.randrange(len(members) + 1), ("meta", _object(rng, META)))
        elif kind == 2:
            members.append(("dead_letter", _object(rng, DEAD)))
        elif kind == 3:
            members.insert(rng.randrange(len(members) + 1), ("data", _object(rng, ["a", "b", "data"])))
        elif kind == 4 and members:
            at = rng.randrange(len(members))
            members[at] = (members[at][0], rng.choice(VALUES))
        elif kind == 5 and members:
            del members[rng.randrange(len(members))]
        else:
            rng.shuffle(members)
    gap = rng.choice(["", "", "", " ", "\n\t"])
    text = "{" + f",{gap}".join(f'"{name}"{gap}:{gap}{value}' for name, value in members) + "}"
    raw = text.encode("utf-8", "surrogatepass")
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        at = rng.randrange(len(raw) + 1)
        raw = raw[:at] + rng.choice(BYTES) + raw[at + rng.randrange(2) :]
    if rng.random() < 0.05:
        raw = raw[: rng.randrange(len(raw) + 1)]
    return raw


def deep(levels: int, rng: random.Random) -> bytes:
    members = canonical(rng)
    half = levels // 2
    members["data"] = (
        '{"a":[' * half + "]}" * half if rng.random() < 0.5 else '{"x":' + "[" * levels + "]" * levels + "}"
    )
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def bodies(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    yield from (b"", b"null", b"[]", b"{}", b" ", b"\x00", b"\xff", b'"x"', b"1", b"{}{}", b"\xef\xbb\xbf{}")
    for levels in (1, 10, 449, 450, 897, 898, 899, 900, 901, 902, 1000, 3000):
        yield deep(levels, rng)
    for _ in range(count):
        yield body(rng)
