"""Reads questions from stdin until it closes; one reply a line, flushed."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from shinar.conformance.bindings import UnknownBinding
from shinar.conformance.calls import CALLS
from shinar.errors import MissingExtra, UsageError


def answer(request: dict[str, Any]) -> dict[str, Any]:
    name = request["call"]
    try:
        if name.startswith("redis_") and name not in CALLS:
            from shinar.conformance.redis_calls import CALLS as LIVE

            call = LIVE.get(name)
        else:
            call = CALLS.get(name)
        if call is None:
            return {"unsupported": True}
        return {"ok": call(request["args"])}
    except (UnknownBinding, MissingExtra):
        return {"unsupported": True}
    except UsageError as exc:
        return {"reject": {"message": str(exc), "pointer": getattr(exc, "pointer", None)}}
    except Exception as exc:  # the protocol wants every other failure told, not hidden
        return {"error": f"{type(exc).__name__}: {exc}"}


def main() -> None:
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line)
        reply = {"id": request["id"], **answer(request)}
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
