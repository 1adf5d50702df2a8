"""The broker's metrics as text for a terminal of 80 columns: values in, lines out. Asks no server."""

from __future__ import annotations

from typing import Any, Final

from shinar.printable import printable

#: Columns of `queues`: name -> width. Ready to other add up to published.
_TOTALS: Final = {"ready": 9, "reserved": 9, "delayed": 8, "published": 10, "acked": 10, "other": 8}
#: Columns of `monitor`.
_LIVE: Final = {"ready": 10, "reserved": 10, "delayed": 10, "in/s": 9, "out/s": 9}
_QUEUE_WIDTH: Final = {"queues": 18, "monitor": 24}
_AGE_WIDTH: Final = 8
#: Status fields that are not counts, and how each reads.
_UNGROUPED: Final = frozenset({"pid"})


def queue_row(metrics: Any, now_ms: int) -> dict[str, Any]:
    """One queue as a JSON object. `removed` is what operators flushed or transferred, so that published =
    ready + reserved + delayed + acked + expired + dead + removed."""
    row = {name: getattr(metrics, name) for name in metrics.__struct_fields__[1:-1]}
    there = row["ready"] + row["reserved"] + row["delayed"]
    settled = row["acked"] + row["expired"] + row["dead"]
    age_s = max(0.0, (now_ms - metrics.oldest_ms) / 1000) if metrics.oldest_ms else None
    removed = max(0, row["published"] - there - settled)
    return {"queue": metrics.name, **row, "removed": removed, "oldest_age_s": age_s}


def queues_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [_line("queue", dict.fromkeys(_TOTALS), "oldest", "queues", _TOTALS)]
    for row in rows:
        values = {**row, "other": row["expired"] + row["dead"] + row["removed"]}
        lines.append(_line(row["queue"], values, age(row["oldest_age_s"]), "queues", _TOTALS))
    return lines


def monitor_table(
    rows: list[dict[str, Any]], before: dict[str, dict[str, Any]] | None, elapsed_s: float
) -> list[str]:
    """Rates are those since the rows `before`; none in the first round."""
    lines = [_line("queue", dict.fromkeys(_LIVE), "oldest", "monitor", _LIVE)]
    for row in rows:
        values = dict(row)
        old = before.get(row["queue"]) if before is not None else None
        if old is not None:
            values["in/s"] = round((row["published"] - old["published"]) / elapsed_s)
            values["out/s"] = round(max(0, _left(row) - _left(old)) / elapsed_s)
        lines.append(_line(row["queue"], values, age(row["oldest_age_s"]), "monitor", _LIVE))
    return lines


def status_lines(status: dict[str, Any]) -> list[str]:
    """The unit is with the value, so the name does without it."""
    names = {name: name.removesuffix("_bytes").removesuffix("_s").replace("_", " ") for name in status}
    return [f"{names[name]:<16} {_value(name, value)}" for name, value in status.items()]


def age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size * 2:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def byte_size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _left(row: dict[str, Any]) -> int:
    """Messages that have left the queue for good."""
    there: int = row["ready"] + row["reserved"] + row["delayed"]
    published: int = row["published"]
    return published - there


def _line(queue: str, values: dict[str, Any], oldest: str, table: str, columns: dict[str, int]) -> str:
    width = _QUEUE_WIDTH[table]
    cells = [f"{_cell(name, values.get(name, '-'), size):>{size}}" for name, size in columns.items()]
    return f"{printable(queue, width):<{width}.{width}}" + "".join(cells) + f"{oldest:>{_AGE_WIDTH}}"


def _cell(name: str, value: Any, width: int) -> str:
    if value is None:
        return name  # the heading
    if not isinstance(value, int):
        return str(value)
    text = f"{value:,}"
    return text if len(text) < width else f"{value / 1e6:,.0f}M"


def _value(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(key))}: {count:,}" for key, count in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return byte_size(value)
    if name.endswith("_s"):
        return age(value) if name == "uptime_s" else f"{value:,.3f} s"
    if isinstance(value, int) and name not in _UNGROUPED:
        return f"{value:,}"
    return printable(str(value))
