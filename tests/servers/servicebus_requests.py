"""What the Service Bus stand-in answers on `$management` nodes and to tokens. Knows no link."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import uuid
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from proton import UNDESCRIBED, Array, Data, timestamp
from servicebus_message import stored, wire
from servicebus_queue import Queue

VENDOR = "com.microsoft"
LOCK_LOST = f"{VENDOR}:message-lock-lost"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def manage(queue: Queue, operation: str, asked: dict[str, Any]) -> tuple[int, Any, str]:
    """Status, body and error condition of a request to a queue's $management node."""
    at_ms = now_ms()
    match operation:
        case "renew-lock":
            until = [queue.renew(token, at_ms) for token in tokens(asked)]
            if None in until:
                return 410, None, LOCK_LOST
            return 200, {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *map(timestamp, until))}, ""
        case "renew-session-lock":
            return 200, {"expiration": timestamp(queue.renew_session(asked["session-id"], at_ms))}, ""
        case "update-disposition":
            return settle_many(queue, asked, at_ms)
        case "schedule-message":
            numbers = [
                queue.put(stored(bytes(entry["message"]), at_ms), at_ms) for entry in asked["messages"]
            ]
            return 200, {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}, ""
        case "cancel-scheduled-message":
            gone = [queue.cancel(number) for number in asked["sequence-numbers"].elements]
            return (200, {}, "") if all(gone) else (404, None, f"{VENDOR}:message-not-found")
        case "peek-message":
            seen = queue.peek(asked["from-sequence-number"], asked["message-count"])
            if not seen:
                return 204, None, ""
            return 200, {"messages": [{"message": wire(message)} for message in seen]}, ""
        case "receive-by-sequence-number":
            taken = [queue.take_deferred(number, at_ms) for number in asked["sequence-numbers"].elements]
            if None in taken:
                return 404, None, f"{VENDOR}:message-not-found"
            rows = [
                {"lock-token": uuid.UUID(bytes_le=m.token.encode()), "message": wire(m)} for m in taken if m
            ]
            return 200, {"messages": rows}, ""
    return 501, None, "amqp:not-implemented"


def settle_many(queue: Queue, asked: dict[str, Any], at_ms: int) -> tuple[int, Any, str]:
    """All or nothing: one lost lock refuses the request."""
    held = tokens(asked)
    if any(queue.holds(token, at_ms) is None for token in held):
        return 410, None, LOCK_LOST
    for token in held:
        match asked["disposition-status"]:
            case "completed":
                queue.complete(token, at_ms)
            case "abandoned":
                queue.abandon(token, at_ms)
            case "defered":
                queue.defer(token, at_ms)
            case "suspended":
                queue.dead_letter(
                    token, at_ms, asked.get("deadletter-reason", ""), asked.get("deadletter-description", "")
                )
    return 200, {}, ""


def tokens(asked: dict[str, Any]) -> list[str]:
    return [token.bytes_le.decode("latin-1") for token in asked["lock-tokens"].elements]


def token_is_valid(token: str, key: str) -> bool:
    """A SAS token signed with the key the stand-in was started with."""
    fields = parse_qs(token.partition(" ")[2], keep_blank_values=True)
    try:
        signed = f"{token.partition('sr=')[2].partition('&')[0]}\n{fields['se'][0]}"
        given = base64.b64decode(unquote_plus(token.partition("sig=")[2].partition("&")[0]))
    except (KeyError, ValueError):
        return False
    return hmac.compare_digest(hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest(), given)
