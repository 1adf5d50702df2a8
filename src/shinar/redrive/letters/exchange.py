"""A dead letter as a row of a file: what `dlq export` writes and `dlq import` reads. Pure, no broker.

The exact body and what travelled beside it, enough to publish the message again byte for byte.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from shinar.brokers import Outgoing
from shinar.errors import ContractError
from shinar.redrive.letters.letter import Letter

#: Members of a row that are text or null; `headers` and `properties` are maps of texts.
TEXTS: Final = ("queue", "position", "key", "fingerprint", "body", "body_encoding")
MAPS: Final = ("headers", "properties")


def exported(letter: Letter) -> dict[str, Any]:
    delivery = letter.delivery
    row: dict[str, Any] = {
        "queue": delivery.queue,
        "position": delivery.position,
        "headers": dict(delivery.headers),
        "properties": {name: plain(value) for name, value in delivery.properties.items()},
        "key": None if delivery.key is None else base64.b64encode(delivery.key).decode(),
        "fingerprint": letter.fingerprint,
    }
    try:
        return row | {"body": delivery.body.decode("utf-8"), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return row | {"body": base64.b64encode(delivery.body).decode(), "body_encoding": "base64"}


def imported(row: object) -> tuple[str, Outgoing]:
    """(the queue it was exported from, the message to publish); ContractError for any other row."""
    if not isinstance(row, Mapping):
        raise ContractError("is not an object; `dlq import` takes what `dlq export` wrote")
    body, queue, key = row.get("body"), row.get("queue"), row.get("key")
    if not isinstance(body, str) or row.get("body_encoding") not in ("utf-8", "base64"):
        raise ContractError(
            "has no body with its encoding; `dlq import` takes what `dlq export` wrote", pointer="/body"
        )
    if not isinstance(queue, str) or not (key is None or isinstance(key, str)):
        raise ContractError("must be a text", pointer="/key" if isinstance(queue, str) else "/queue")
    raw = _bytes(body, row["body_encoding"], "/body")
    return queue, Outgoing(raw, _headers(row), None if key is None else _bytes(key, "base64", "/key"))


def _headers(row: Mapping[Any, Any]) -> dict[str, str]:
    headers = row.get("headers") or {}
    if not isinstance(headers, Mapping) or any(
        not isinstance(text, str) for one in headers.items() for text in one
    ):
        raise ContractError("must be an object of texts", pointer="/headers")
    return dict(headers)


def plain(value: object) -> str:
    """A property for people and files: bytes as text."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(text: str, encoding: str, pointer: str) -> bytes:
    try:
        if encoding == "utf-8":
            return text.encode("utf-8")
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:  # half a surrogate pair; or what base64 does not have
        raise ContractError(f"is not {encoding}", pointer=pointer) from None
