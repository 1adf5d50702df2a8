"""What a row of a message table holds beside the body: for the SQL queue and the outbox. Runs nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shinar.brokers.projection import check_header, checked_delay_s
from shinar.errors import ContractError, UsageError

log: Final = logging.getLogger(__name__)

#: Before every table's name, so that Shinar's tables stand together.
DEFAULT_PREFIX: Final = "shinar_"
#: Longest queue name, in bytes: what the narrowest of the three databases indexes.
MAX_QUEUE_BYTES: Final = 255

_HEADERS: Final = msgspec.json.Decoder(dict[str, str])

# Written strictly and read leniently: a row nobody can read would
# hold up its neighbours for good.


def headers_text(headers: Mapping[Any, Any]) -> str | None:
    if not headers:
        return None
    for name, text in headers.items():
        check_header(name, text)
    return msgspec.json.encode(dict(headers)).decode()


def headers_of(text: Any) -> dict[str, str]:
    if not text:
        return {}
    try:
        return _HEADERS.decode(text)
    except (msgspec.DecodeError, TypeError):
        pass
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        log.warning("headers of a stored message are no JSON object and are left out: %.200r", text)
        return {}
    # Through UTF-8: a lone surrogate would keep the message from going anywhere else.
    return {_unicode(name): _unicode(str(value)) for name, value in found.items()}


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def checked_key(key: bytes | None) -> bytes | None:
    if key is not None and not isinstance(key, bytes):
        raise ContractError(f"an ordering key is bytes, not {type(key).__name__}: encode it")
    return key


def bytes_of(value: Any) -> bytes:
    """SQLite keeps what it is given: a row written by hand may hold text or a number."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()


def due_ms(now_ms: int, delay_s: float) -> int:
    return now_ms + round(max(0.0, checked_delay_s("sql", delay_s)) * 1000)


def check_queue(queue: str) -> None:
    size = len(queue.encode())
    if not 0 < size <= MAX_QUEUE_BYTES or "\0" in queue:
        raise UsageError(f"a queue's name has 1 to {MAX_QUEUE_BYTES} bytes and no NUL; this one has {size}")
