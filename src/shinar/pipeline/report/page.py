"""Figures as one HTML page: no script, no font, no address outside itself. All data is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from shinar.pipeline.report.charts import (
    Series,
    bars,
    duration,
    lines,
    share_bar,
    sparkline,
    time_unit,
    waterfall,
)
from shinar.pipeline.report.figures import ReportFigures
from shinar.pipeline.report.html import Html, anchor, moment, number, section, table
from shinar.pipeline.report.style import CSS
from shinar.printable import printable

_LABEL: Final = {"minute": "%H:%M", "hour": "%d %b %H:%M", "day": "%d %b"}

_PALETTE: Final = ("--c1", "--c2", "--good", "--c4", "--c5", "--c6")

#: What each finding of the drift job means, for a reader who has not read its page.
_FINDINGS: Final = {
    "mixed_types": "mixed types",
    "type_clash": "does not fit its column",
    "unsafe_integer": "integer beyond 2^53-1",
    "float_money": "fraction in a money field",
    "missing_field": "field missing in this language",
    "forbidden_key": "forbidden key",
    "header_disagrees": "header and body disagree",
    "new_field": "new field",
    "gone_field": "field gone",
}


#: The page runs nothing and loads nothing: what a message could smuggle in finds nothing to work with.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(figures: ReportFigures, mask: Callable[[str], str] = str) -> str:
    """The page. `mask` is applied to every text that quotes a message."""
    when = "received" if figures.with_receipt else "created"
    sections = [
        _tiles(figures),
        section("Traffic", _traffic(figures), f"{when} per {figures.unit}"),
        section("Produced", _produced(figures), f"created per {figures.produced_unit}, by language"),
        section("Latency", _latency(figures), "from creation to receipt"),
        section("By URN", _by_urn(figures)),
        section("Dead letters", _dead_letters(figures, mask), "grouped by cause"),
        section("Quarantine", _quarantine(figures, mask), "bodies that were not accepted"),
        section("Typed rejects", _typed_rejects(figures), "messages without a row in their typed table"),
        section("Traces", _traces(figures)),
        section("Steps", _edges(figures), "which message leads to which"),
        section("Stuck", _stuck(figures), "should have led to another message, and did not"),
        section("Contract drift", _drift(figures)),
        section("Producers", _producers(figures)),
        section("Batches", _batches(figures), "received = messages + quarantine + duplicates"),
    ]
    names = (
        "Traffic",
        "Produced",
        "Latency",
        "By URN",
        "Dead letters",
        "Quarantine",
        "Typed rejects",
        "Traces",
        "Stuck",
        "Contract drift",
    )
    links = "".join(f'<a href="#{anchor(name)}">{name}</a>' for name in names)
    title = f"Shinar report: {escape(figures.lake)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{CSS}</style></head><body><header><h1>{title}</h1>"
        f"<p>{_span(figures)} · made {moment(figures.made_at)} · all times UTC</p><nav>{links}</nav></header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def _span(figures: ReportFigures) -> str:
    if figures.first_at is None:
        return "no messages yet"
    when = "received" if figures.with_receipt else "created"
    return f"messages {when} {moment(figures.first_at)} to {moment(figures.last_at)}"


def _tiles(figures: ReportFigures) -> str:
    totals = figures.totals
    adds_up = totals["received"] == totals["messages"] + totals["quarantine"] + totals["duplicates"]
    rate = totals["dead_letters"] / totals["messages"] if totals["messages"] else 0.0
    tiles = [
        ("received", number(totals["received"]), f"{number(totals['batches'])} batches", ""),
        ("messages", number(totals["messages"]), "once per id", ""),
        ("quarantine", number(totals["quarantine"]), "not accepted", "bad" if totals["quarantine"] else ""),
        ("duplicates", number(totals["duplicates"]), "delivered again", ""),
        (
            "typed rejects",
            number(totals["typed_rejects"]),
            "no row in their typed table",
            "bad" if totals["typed_rejects"] else "",
        ),
        (
            "dead letters",
            number(totals["dead_letters"]),
            f"{rate * 100:.2f} % of messages",
            "bad" if totals["dead_letters"] else "",
        ),
        ("p95 latency", duration(figures.latency.get("p95_ms")), "creation to receipt", ""),
        ("adds up", "yes" if adds_up else "NO", "received = sum of the parts", "good" if adds_up else "bad"),
    ]
    cells = "".join(
        f'<div class="tile {tone}"><small>{escape(name)}</small><b>{escape(value)}</b>'
        f"<span>{escape(note)}</span></div>"
        for name, value, note, tone in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _labels(figures: ReportFigures) -> list[str]:
    return [row["at"].strftime(_LABEL[figures.unit]) for row in figures.traffic]


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def _traffic(figures: ReportFigures) -> str:
    if not figures.traffic:
        return '<p class="empty">nothing was received yet</p>'
    layers = [
        Series(name.replace("_", " "), colour, _column(figures.traffic, name))
        for name, colour in (("messages", "--c1"), ("duplicates", "--c3"), ("quarantine", "--bad"))
    ]
    return bars(_labels(figures), layers, title="messages over time")


def _produced(figures: ReportFigures) -> str:
    """The languages with the most messages get a colour each; the rest share the last one."""
    if not figures.produced:
        return '<p class="empty">nothing was produced yet</p>'
    totals: Counter[str] = Counter()
    counts: dict[tuple[datetime, str], int] = {}
    for row in figures.produced:
        totals[row["lang"]] += row["messages"]
        counts[row["at"], row["lang"]] = row["messages"]
    moments = sorted({row["at"] for row in figures.produced})
    named = [lang for lang, _ in totals.most_common(len(_PALETTE))]
    layers = [
        Series(lang, colour, [counts.get((at, lang), 0) for at in moments])
        for lang, colour in zip(named, _PALETTE, strict=False)
    ]
    rest = [lang for lang in totals if lang not in named]
    if rest:
        others = [sum(counts.get((at, lang), 0) for lang in rest) for at in moments]
        layers.append(Series("others", "--c3", others))
    labels = [at.strftime(_LABEL[figures.produced_unit]) for at in moments]
    return bars(labels, layers, title="messages by creation")


def _latency(figures: ReportFigures) -> str:
    if not figures.traffic:
        return '<p class="empty">nothing was received yet</p>'
    if not figures.with_receipt:
        return '<p class="empty">an archive does not say when its messages were received</p>'
    shown = (("p50", "--c1"), ("p95", "--c2"), ("p99", "--bad"))
    values = {name: _column(figures.traffic, f"{name}_ms") for name, _ in shown}
    size, unit = time_unit(max((ms for column in values.values() for ms in column if ms), default=0))
    series = [
        Series(name, colour, [None if ms is None else ms / size for ms in values[name]])
        for name, colour in shown
    ]
    return lines(_labels(figures), series, title="latency over time", unit=f" {unit}")


def _by_urn(figures: ReportFigures) -> str:
    rows = [
        (
            row["urn"] or "–",
            ", ".join(row["langs"] or []),
            number(row["messages"]),
            number(row["retries"]),
            number(row["dead_letters"]),
            Html(share_bar(row["dead_letters"] / row["messages"], "--bad")) if row["messages"] else "–",
            duration(row["p50_ms"]),
            duration(row["p95_ms"]),
            duration(row["p99_ms"]),
        )
        for row in figures.by_urn
    ]
    heads = ["URN", "languages", "messages", "retries", "dead letters", "DLQ rate", "p50", "p95", "p99"]
    return table(heads, rows, "no messages", right=(2, 3, 4, 6, 7, 8))


def _dead_letters(figures: ReportFigures, mask: Callable[[str], str]) -> str:
    moments = sorted({row["at"] for row in figures.deaths})
    counts: dict[str, dict[datetime, int]] = {}
    for row in figures.deaths:
        counts.setdefault(row["fingerprint"], {})[row["at"]] = row["dead_letters"]
    rows = []
    for row in figures.fingerprints:
        mine = counts.get(row["fingerprint"], {})
        mark = (
            '<b class="tag bad">new</b>' if row["new"] else '<b class="tag">gone</b>' if row["gone"] else ""
        )
        name = escape(row["exception"] or row["reason"] or "–")
        told = (
            f"<code>{escape(row['fingerprint'])}</code> {mark}<br><b>{name}</b>"
            f"<br><small>{escape(mask(row['template'] or ''))}</small>"
        )
        rows.append(
            (
                Html(told),
                row["urn"] or "–",
                row["lang"] or "–",
                row["original_queue"] or "–",
                number(row["dead_letters"]),
                Html(share_bar(row["share"], "--bad")),
                Html(sparkline([mine.get(at, 0) for at in moments])),
                moment(row["first_seen"]),
                moment(row["last_seen"]),
            )
        )
    heads = ["cause", "URN", "lang", "queue", "count", "share", "when", "first", "last"]
    return table(heads, rows, "no dead letters", right=(4,))


def _quarantine(figures: ReportFigures, mask: Callable[[str], str]) -> str:
    rows = [
        (
            row["verdict"] or "–",
            row["reason"] or "–",
            Html(f"<code>{escape(row['pointer'] or '')}</code>"),
            row["queue"] or "–",
            number(row["count"]),
            moment(row["last_at"]),
            Html(f"<code class=sample>{escape(printable(mask(row['sample'] or '')))}</code>"),
        )
        for row in figures.quarantine
    ]
    heads = ["verdict", "reason", "pointer", "queue", "count", "last", "sample"]
    return table(heads, rows, "nothing in quarantine", right=(4,))


def _typed_rejects(figures: ReportFigures) -> str:
    rows = [
        (
            row["table"],
            Html(f"<code>{escape(row['pointer'] or '')}</code>"),
            row["reason"],
            row["lang"] or "–",
            number(row["count"]),
            moment(row["last_at"]),
            Html(f"<code>{escape(row['sample_id'] or '')}</code>"),
        )
        for row in figures.typed_rejects
    ]
    heads = ["table", "field", "reason", "lang", "count", "last", "sample id"]
    return table(heads, rows, "every message fits its typed table", right=(4,))


def _traces(figures: ReportFigures) -> str:
    told = figures.trace_totals
    words = (
        f"{number(told['traces'])} traces, {number(told['hops'])} hops; "
        f"median duration {duration(told['p50_ms'])}, p95 {duration(told['p95_ms'])}; "
        f"{number(told['slow_hops'])} slow hops, {number(told['gaps'])} gaps, "
        f"{number(told['with_cycles'])} traces with cycles"
    )
    rows = [
        (
            Html(f"<code>{escape(row['trace_id'])}</code>"),
            moment(row["started_at"]),
            duration(row["duration_ms"]),
            number(row["hops"]),
            number(row["fan_out"]),
            number(row["slow_hops"]),
            number(row["gaps"]),
            number(row["cycles"]),
            row["path"],
        )
        for row in figures.slow_traces
    ]
    heads = ["slowest traces", "started", "duration", "hops", "fan-out", "slow", "gaps", "cycles", "path"]
    drawn = "".join(_waterfall(hops) for hops in figures.waterfalls if hops)
    return f"<p>{words}</p>{drawn}" + table(heads, rows, "no traces", right=(2, 3, 4, 5, 6, 7))


def _waterfall(hops: list[dict[str, Any]]) -> str:
    times = [hop["created_at"] or hop["received_at"] for hop in hops]
    start = min((time for time in times if time is not None), default=None)
    if start is None:
        return ""
    rows = []
    for hop, at in zip(hops, times, strict=True):
        # The step to this message. How long it waited to be read says more about this job than about it.
        end = (at - start).total_seconds() * 1000 if at is not None else 0.0
        begin = max(0.0, end - (hop["latency_ms"] or 0))
        rows.append((f"{hop['urn']} ({hop['lang'] or '–'})", begin, end, bool(hop["slow"])))
    name = hops[0]["trace_id"]
    return f"<h3><code>{escape(name)}</code></h3>" + waterfall(rows, title=f"trace {name}")


def _edges(figures: ReportFigures) -> str:
    rows = [
        (
            row["parent_urn"],
            row["urn"],
            number(row["steps"]),
            Html(share_bar(row["share"])),
            duration(row["p50_ms"]),
            duration(row["p95_ms"]),
            duration(row["p99_ms"]),
            duration(row["max_ms"]),
        )
        for row in figures.edges
    ]
    heads = ["from", "to", "steps", "followed", "p50", "p95", "p99", "longest"]
    return table(heads, rows, "no trace has more than one message", right=(2, 4, 5, 6, 7))


def _stuck(figures: ReportFigures) -> str:
    rows = [
        (
            Html(f"<code>{escape(row['id'])}</code>"),
            row["urn"],
            row["expected_urn"],
            duration(row["usual_ms"]),
            duration(row["age_ms"]),
            row["queue"] or "–",
            row["lang"] or "–",
        )
        for row in figures.stuck
    ]
    heads = ["message", "URN", "expected", "usually within", "waiting for", "queue", "lang"]
    return table(heads, rows, "nothing is stuck", right=(3, 4))


def _drift(figures: ReportFigures) -> str:
    rows = [
        (
            _FINDINGS.get(row["finding"], row["finding"]),
            row["urn"] or "–",
            row["lang"] or "–",
            Html(f"<code>{escape(row['pointer'] or '')}</code>"),
            row["detail"] or "",
            number(row["seen"]),
            moment(row["first_at"]),
            moment(row["last_at"]),
        )
        for row in figures.drift
    ]
    heads = ["finding", "URN", "lang", "field", "detail", "seen", "first", "last"]
    return table(heads, rows, "no drift", right=(5,))


def _producers(figures: ReportFigures) -> str:
    langs = sorted({row["lang"] or "–" for row in figures.producers})
    urns = sorted({row["urn"] or "–" for row in figures.producers})
    counts = {(row["urn"] or "–", row["lang"] or "–"): row["count"] for row in figures.producers}
    rows = [
        (urn, *(number(counts[urn, lang]) if (urn, lang) in counts else "" for lang in langs)) for urn in urns
    ]
    return table(["URN", *langs], rows, "no messages", right=range(1, len(langs) + 1))


def _batches(figures: ReportFigures) -> str:
    rows = [
        (
            row["batch"],
            row["queue"] or "–",
            number(row["received"]),
            number(row["messages"]),
            number(row["quarantine"]),
            number(row["duplicates"]),
            duration(row["took_ms"]),
            moment(row["prepared_at"]),
        )
        for row in figures.batches
    ]
    heads = ["latest batches", "queue", "received", "messages", "quarantine", "duplicates", "took", "at"]
    return table(heads, rows, "no batches", right=(2, 3, 4, 5, 6))
