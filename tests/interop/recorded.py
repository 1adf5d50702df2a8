"""What other implementations really leave in a broker, as bytes: written down from runs beside their own
sources (BabelQueue Go 1.8.0, php-sdk 1.9.0, InitPHP/Queue 2.0, the Laravel adapter, java-redis), which no
registry in reach carries. Each record says where it lies and what must become of it here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

CREATED_MS = 1_790_000_000_123


def _body(lang: str, data: str, **fields: str) -> bytes:
    meta = {
        "id": f"{lang}-1", "queue": "orders", "lang": lang, "schema_version": 1, "created_at": CREATED_MS,
    }  # fmt: skip
    members = {
        "job": '"urn:babel:orders:created"',
        "trace_id": f'"{lang}-trace"',
        "data": data,
        "meta": json.dumps(meta, separators=(",", ":")),
        "attempts": "0",
        **fields,
    }
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


@dataclass(frozen=True)
class Record:
    peer: str
    body: bytes
    #: "handled" with this payload, or "dead" with this reason.
    becomes: str
    data: Any = None
    headers: dict[str, Any] = field(default_factory=dict)


#: Bodies as their producers write them, on any broker.
PUBLISHED = (
    Record("php-sdk", _body("php", '{"sku":"A-1","note":"gr\\u00f6\\u00dfe","path":"a\\/b"}'), "handled",
           {"sku": "A-1", "note": "größe", "path": "a/b"}),
    Record("php-sdk, nested empty object", _body("php", '{"options":[]}'), "handled", {"options": []}),
    Record("php-sdk, empty payload", _body("php", "[]"), "poison"),
    Record("go, rounded integer", _body("go", '{"n":9007199254740992}'), "handled", {"n": 9007199254740992}),
    Record("go, largest integer", _body("go", '{"n":9223372036854776000}'), "handled",
           {"n": 9223372036854776000}),
    Record("go, poison after its redrive",
           b'{"job":"","trace_id":"","data":null,"meta":{"id":"","queue":"","lang":"","schema_version":0,'
           b'"created_at":0},"attempts":0}', "poison"),
    Record("laravel, 17 digits", _body("php", '{"n":1.2345678901234567e+16}'), "handled",
           {"n": 1.2345678901234567e16}),
    Record("java", _body("java", '{"price":99.90,"big":12345678901234567890}'), "handled",
           {"price": 99.9, "big": 12345678901234567890}),
    Record("node", _body("node", '{"tags":["a","b"],"when":null}'), "handled",
           {"tags": ["a", "b"], "when": None}),
)  # fmt: skip

#: InitPHP/Queue keeps delayed messages as bare bodies under `<queue>:delayed`, scored in whole seconds.
INITPHP_DELAYED = _body("php", '{"sku":"late"}')
#: Its failed ones lie in `<queue>:failed`, with a block of its own words.
INITPHP_FAILED = _body(
    "php",
    '{"sku":"broken"}',
    attempts="3",
    dead_letter='{"reason":"max_attempts","error":"Call to a member function price() on null",'
    '"exception":"Error","failed_at":1790000001000,"original_queue":"orders","attempts":3,"lang":"php"}',
)
#: Java and Go leave what failed, or what a consumer died with, in `<queue>:processing` without a deadline.
JAVA_PROCESSING = _body("java", '{"sku":"stuck"}')
#: The Laravel adapter on RabbitMQ counts in the header alone.
LARAVEL_COUNTED = Record("laravel, third delivery", _body("php", "{}"), "handled", {}, {"x-attempts": 2})
