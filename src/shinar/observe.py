"""Counters, gauges and log lines. Knows nothing of messages or brokers.

Metrics are kept by name and labels and rendered as Prometheus text. Labels are of low cardinality
(queue, urn, outcome), never ids. Logs carry ids as fields and never a payload at info level.
"""

from __future__ import annotations

import bisect
import datetime
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from shinar.printable import printable, printable_lines

Labels = tuple[tuple[str, str], ...]

#: Upper bounds of the duration histogram, in seconds.
BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)

#: A traceback in the log is cut to so many characters: its last line may quote a whole response.
MAX_TRACEBACK_CHARS: Final = 20_000
#: Fields a log record may carry as `extra`; each becomes a member of the JSON line.
LOG_FIELDS: Final = ("trace_id", "id", "urn", "queue", "attempt", "outcome", "count", "broker", "duration_ms")


class Metrics:
    """Thread-safe. `add` and `put` are called per batch, not per message, where speed matters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], list[float]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def put(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._gauges[name, tuple(sorted(labels.items()))] = value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            # buckets..., +Inf, sum
            row = self._histograms.setdefault(key, [0.0] * (len(BUCKETS_S) + 2))
            row[bisect.bisect_left(BUCKETS_S, seconds)] += 1
            row[-1] += seconds

    def value(self, name: str, **labels: str) -> float:
        """Sum over every series that has these labels; 0 when there is none."""
        wanted = set(labels.items())
        with self._lock:
            series = [*self._counters.items(), *self._gauges.items()]
        return sum(amount for (found, has), amount in series if found == name and wanted <= set(has))

    def render(self) -> str:
        """Prometheus text exposition, version 0.0.4."""
        with self._lock:
            counters, gauges = dict(self._counters), dict(self._gauges)
            histograms = {key: list(row) for key, row in self._histograms.items()}
        lines: list[str] = []
        for kind, series in (("counter", counters), ("gauge", gauges)):
            last = ""
            for (name, labels), value in sorted(series.items()):
                if name != last:
                    lines.append(f"# TYPE {name} {kind}")
                    last = name
                lines.append(f"{name}{_label_text(labels)} {value:g}")
        for (name, labels), row in sorted(histograms.items()):
            lines += _histogram_lines(name, labels, row)
        return "\n".join(lines) + "\n"


def _histogram_lines(name: str, labels: Labels, row: list[float]) -> list[str]:
    lines = [f"# TYPE {name} histogram"]
    total = 0.0
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), row, strict=False):
        total += count
        lines.append(f"{name}_bucket{_label_text((*labels, ('le', bound)))} {total:g}")
    lines.append(f"{name}_sum{_label_text(labels)} {row[-1]:g}")
    lines.append(f"{name}_count{_label_text(labels)} {total:g}")
    return lines


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    parts = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return f"{{{parts}}}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ms), level, logger, message and the known fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= fields_of(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[:MAX_TRACEBACK_CHARS]
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """The same for people: message first, fields behind it. Nothing in it can forge a line or drive a
    terminal, wherever it comes from."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={printable(str(value))}" for name, value in fields_of(record).items())
        when = self.formatTime(record, "%H:%M:%S")
        text = f"{when} {record.levelname.lower():<7} {printable(record.getMessage())}"
        text = f"{text}  {fields}" if fields else text
        if not record.exc_info:
            return text
        return f"{text}\n{printable_lines(self.formatException(record.exc_info)[:MAX_TRACEBACK_CHARS])}"


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    return {name: value for name in LOG_FIELDS if (value := getattr(record, name, None)) not in (None, "")}


class ContextFilter(logging.Filter):
    """Adds the fields of whatever is being handled to every record that does not bring its own."""

    def __init__(self, fields: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in self._fields().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def setup_logging(
    *,
    level: str = "info",
    json_lines: bool = False,
    logger: str = "shinar",
    fields: Callable[[], Mapping[str, object]] | None = None,
) -> None:
    """Send the log of `logger` ("" for everybody's) to stderr. Called by the CLI only; a library leaves this
    to its host. `fields` gives the fields of what is being handled."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter())
    if fields is not None:
        handler.addFilter(ContextFilter(fields))
    chosen = logging.getLogger(logger)
    chosen.handlers = [handler]
    chosen.setLevel(level.upper())
    chosen.propagate = False
