"""The server's metrics: as values for `status` and `queues`, and as Prometheus text. Reads, changes nothing.

What is listed by queue is an iterator, so that a caller with little time can go on later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from shinar.phpmq.protocol.extension import QueueMetrics
from shinar.phpmq.store import DamagedPage

if TYPE_CHECKING:
    from shinar.phpmq.engine import BrokerEngine
    from shinar.phpmq.server.hub import Hub

#: Field of Totals -> what it counts.
_COUNTERS: Final = {
    "published": "messages accepted",
    "delivered": "messages handed out",
    "acked": "messages acknowledged",
    "released": "messages handed back by clients",
    "moved": "messages moved to another queue while reserved",
    "lapsed": "messages whose lease ran out",
    "expired": "messages whose TTL ended, now in a .dlq queue",
    "dead": "messages dead-lettered by plain clients",
    "flushed": "messages deleted by an operator",
    "transferred": "messages moved to another queue by an operator",
    "commits": "transactions",
    "store_failures": "transactions the disk refused",
    "failed_logins": "connections without a token or with a wrong one",
}
_GAUGES: Final = {
    "connections": "clients connected",
    "store_bytes": "data file and write-ahead log",
    "free_bytes": "left on the disk",
    "window_bytes": "bodies kept in memory",
    "damaged_queues": "queues closed because a page of theirs cannot be read",
    "uptime_s": "seconds since the start",
}


def of_queues(engine: BrokerEngine, wanted: Callable[[str], bool]) -> Iterator[QueueMetrics | None]:
    """One row for each queue, by name; None for a queue that is not wanted, or is gone meanwhile."""
    for name in sorted(engine.queues.by_name):
        queue = engine.queues.find(name)
        if queue is None or not wanted(name):
            yield None
            continue
        row = queue.row
        yield QueueMetrics(
            name, queue.ready, len(queue.reserved), row.delayed, len(queue.consumers) + len(queue.waiters),
            row.published, row.acked, row.expired, row.dead, _oldest_ms(engine, name),
        )  # fmt: skip


def _oldest_ms(engine: BrokerEngine, name: str) -> int:
    queue = engine.queues.find(name)
    if queue is None or queue.damage:
        return 0
    try:
        return engine.store.oldest_ms(queue.row)
    except DamagedPage as exc:
        engine.queues.isolate(exc.queue, exc)
        return 0


def of_server(hub: Hub) -> dict[str, Any]:
    engine = hub.engine
    totals = engine.totals
    queues = engine.queues.by_name.values()
    return {
        "server": hub.version,
        "pid": os.getpid(),
        "uptime_s": round(hub.clock.monotonic_s() - hub.since_s, 3),
        "data": str(engine.store.folder),
        "durability": engine.store.durability,
        "archive": engine.store.archiving,
        "queues": len(queues),
        "ready": sum(queue.ready for queue in queues),
        "reserved": engine.leases.held,
        "delayed": sum(queue.row.delayed for queue in queues),
        "connections": len(hub.connections),
        "store_bytes": engine.store.size_bytes(),
        "free_bytes": engine.store.free_bytes(),
        "window_bytes": engine.queues.window_bytes,
        "damaged_queues": totals.damaged_queues,
        "commit_s": round(totals.commit_s, 6),
        "cut_off": dict(totals.cut_off),
        "limited": dict(totals.limited),
        **{name: getattr(totals, name) for name in _COUNTERS},
    }


def prometheus(hub: Hub, queues: list[QueueMetrics]) -> Iterator[str]:
    """Lines of text exposition format 0.0.4."""
    status = of_server(hub)
    for name, what in _COUNTERS.items():
        yield from _metric(f"shinar_broker_{name}_total", "counter", what, [("", status[name])])
    for name, what in _GAUGES.items():
        yield from _metric(f"shinar_broker_{name}", "gauge", what, [("", status[name])])
    for name, label, what in (
        ("cut_off", "reason", "clients cut off"),
        ("limited", "limit", "requests refused because a limit was reached"),
    ):
        reasons = [(f'{{{label}="{_label(reason)}"}}', count) for reason, count in status[name].items()]
        yield from _metric(f"shinar_broker_{name}_total", "counter", what, reasons)
    now_ms = hub.clock.epoch_ms()
    for name in ("ready", "reserved", "delayed", "consumers"):
        rows = ((_queue(row), getattr(row, name)) for row in queues)
        yield from _metric(f"shinar_broker_queue_{name}", "gauge", f"{name} in this queue", rows)
    ages = ((_queue(one), max(0, now_ms - one.oldest_ms) / 1000 if one.oldest_ms else 0) for one in queues)
    yield from _metric("shinar_broker_queue_oldest_s", "gauge", "age of the oldest message", ages)


def _metric(name: str, kind: str, what: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield f"{name}{labels} {value}"


def _queue(row: QueueMetrics) -> str:
    return f'{{queue="{_label(row.name)}"}}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
