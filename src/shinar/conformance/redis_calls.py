"""The adapter's live Redis calls: each opens or drives one queue under a pinned clock."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any, Final

import redis

from shinar.brokers.redis.queue import RedisQueue, RedisSettings, Reservation, open_queue
from shinar.clock import PinnedClock
from shinar.conformance.calls import Answer, Args, b64, body_of
from shinar.envelope import Kind, attempts_of, judge, retry_copy

_LAYOUTS: Final = {"zset": "laravel", "legacy": "processing"}


class Session:
    def __init__(self, args: Args) -> None:
        self.clock = PinnedClock()
        self.legacy = args["layout"] == "legacy"
        options: dict[str, Any] = {"layout": _LAYOUTS[args["layout"]]}
        if "retry_after" in args:
            options["retry_after_s"] = args["retry_after"]
        if "migration_batch_size" in args:
            options["migration_batch_size"] = args["migration_batch_size"]
        self.client = redis.Redis.from_url(args["url"])
        self.queue: RedisQueue = open_queue(self.client, args["queue"], self.clock, RedisSettings(**options))


_sessions: dict[str, Session] = {}
_numbers = itertools.count(1)


def _session(args: Args) -> Session:
    session = _sessions[args["session"]]
    session.clock.pin(args["now"])
    return session


def _reservation(session: Session, args: Args) -> Reservation:
    given = args["reservation"]
    raw = base64.b64decode(given["raw_b64"])
    handle = given["token"].encode() if session.legacy else base64.b64decode(given["member_b64"])
    return Reservation(raw, handle)


def redis_open(args: Args) -> Answer:
    name = f"s{next(_numbers)}"
    _sessions[name] = Session(args)
    return {"session": name}


def redis_close(args: Args) -> Answer:
    _sessions.pop(args["session"]).client.close()
    return {}


def redis_push(args: Args) -> Answer:
    _session(args).queue.push([body_of(args)])
    return {}


def redis_push_delayed(args: Args) -> Answer:
    _session(args).queue.push_delayed(body_of(args), args["delay"])
    return {}


def redis_recover(args: Args) -> Answer:
    _session(args).queue.recover()
    return {}


def redis_reserve(args: Args) -> Answer:
    session = _session(args)
    found = session.queue.reserve_one()
    if found is None:
        return {"outcome": "empty"}
    usable = judge(found.raw).kind not in (Kind.POISON, Kind.NO_IDENTITY)
    if session.legacy:
        reservation = {"token": found.handle.decode(), "raw_b64": b64(found.raw)}
    else:
        usable = usable and found.counted
        reservation = {"raw_b64": b64(found.raw), "member_b64": b64(found.handle)}
    answer: Answer = {
        "outcome": "delivered" if usable else "poison",
        "body_b64": b64(found.raw),
        "reservation": reservation,
    }
    if usable and not session.legacy:
        answer["attempts"] = attempts_of(found.handle)
    return answer


def redis_ack(args: Args) -> Answer:
    session = _session(args)
    session.queue.ack(_reservation(session, args))
    return {}


def redis_release(args: Args) -> Answer:
    session = _session(args)
    held = _reservation(session, args)
    session.queue.release(held, args["delay"], retry_copy(held.raw))
    return {}


def redis_dead_letter(args: Args) -> Answer:
    session = _session(args)
    session.queue.dead_letter(_reservation(session, args), base64.b64decode(args["record_b64"]))
    return {}


CALLS: Final[dict[str, Callable[[Args], Answer]]] = {
    "redis_open": redis_open,
    "redis_close": redis_close,
    "redis_push": redis_push,
    "redis_push_delayed": redis_push_delayed,
    "redis_recover": redis_recover,
    "redis_reserve": redis_reserve,
    "redis_ack": redis_ack,
    "redis_release": redis_release,
    "redis_dead_letter": redis_dead_letter,
}
