"""The server's figures: as values for `status` and `queues`, and as Prometheus text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from shinar.phpmq.protocol.extension import QueueFigures

if TYPE_CHECKING:
    from shinar.phpmq.server.engine import Engine
    from shinar.phpmq.server.listen import Hub

#: Prometheus name -> (Totals field, what it counts)
_COUNTERS: Final = {
    "published": "messages accepted",
    "delivered": "messages handed out",
    "acked": "messages acknowledged",
    "released": "messages handed back by clients",
    "moved": "messages moved to another queue while held",
    "lapsed": "leases of messages that ran out",
    "expired": "messages whose TTL ended, now in a .dlq queue",
    "dead": "messages dead-lettered by plain clients",
    "commits": "transactions",
    "store_failures": "transactions the disk refused",
}


def of_queues(engine: Engine) -> list[QueueFigures]:
    return [
        QueueFigures(
            queue.name,
            queue.ready,
            queue.inflight,
            queue.row.delayed,
            len(queue.consumers) + len(queue.waiters),
            queue.row.published,
            queue.row.acked,
            queue.row.expired,
            queue.row.dead,
            engine.store.oldest_ms(queue.row),
        )
        for _, queue in sorted(engine.queues.items())
    ]


def of_server(hub: Hub) -> dict[str, Any]:
    engine = hub.engine
    totals = engine.totals
    return {
        "server": hub.version,
        "pid": os.getpid(),
        "uptime_s": round(hub.clock.monotonic_s() - hub.since_s, 3),
        "data": str(engine.store.folder),
        "durability": engine.store.durability,
        "archive": engine.store.archiving,
        "queues": len(engine.queues),
        "ready": sum(queue.ready for queue in engine.queues.values()),
        "reserved": engine.leases.held,
        "delayed": sum(queue.row.delayed for queue in engine.queues.values()),
        "connections": len(hub.connections),
        "store_bytes": engine.store.size_bytes(),
        "free_bytes": engine.store.free_bytes(),
        "window_bytes": engine.budget.used,
        "commit_s": round(totals.commit_s, 6),
        "cut_off": dict(totals.cut_off),
        **{name: getattr(totals, name) for name in _COUNTERS},
    }


def prometheus(hub: Hub) -> str:
    """Text exposition format 0.0.4."""
    return "\n".join(_lines(hub)) + "\n"


def _lines(hub: Hub) -> Iterator[str]:
    status = of_server(hub)
    for name, what in _COUNTERS.items():
        yield from _metric(f"shinar_broker_{name}_total", "counter", what, [("", status[name])])
    gauges = {
        "connections": "clients connected",
        "store_bytes": "data file and write-ahead log",
        "free_bytes": "left on the disk",
        "window_bytes": "bodies kept in memory",
        "uptime_s": "seconds since the start",
    }
    for name, what in gauges.items():
        yield from _metric(f"shinar_broker_{name}", "gauge", what, [("", status[name])])
    cut = [(f'{{reason="{_label(reason)}"}}', count) for reason, count in status["cut_off"].items()]
    yield from _metric("shinar_broker_cut_off_total", "counter", "clients cut off", cut)
    queues = of_queues(hub.engine)
    now_ms = hub.clock.epoch_ms()
    for name in ("ready", "reserved", "delayed", "consumers"):
        rows = [(_queue(figures), getattr(figures, name)) for figures in queues]
        yield from _metric(f"shinar_broker_queue_{name}", "gauge", f"{name} in this queue", rows)
    ages = [(_queue(one), max(0, now_ms - one.oldest_ms) / 1000 if one.oldest_ms else 0) for one in queues]
    yield from _metric("shinar_broker_queue_oldest_s", "gauge", "age of the oldest message", ages)


def _metric(name: str, kind: str, what: str, rows: list[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield f"{name}{labels} {value}"


def _queue(figures: QueueFigures) -> str:
    return f'{{queue="{_label(figures.name)}"}}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
