"""Plots as inline SVG from plain numbers. Every text is escaped; colours are the page's CSS variables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

#: Drawing area in SVG units; the page scales it to its column.
WIDTH: Final = 960
HEIGHT: Final = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 26
_GRID_LINES: Final = 4
_LABELS: Final = 8
#: Room for at least so many bars: a single one is not drawn as a wall.
_LEAST_BARS: Final = 12
#: Largest value shown in a unit of time, its milliseconds, its name.
_TIMES: Final = (
    (1_000, 1, "ms"),
    (120_000, 1_000, "s"),
    (7_200_000, 60_000, "min"),
    (172_800_000, 3_600_000, "h"),
    (float("inf"), 86_400_000, "d"),
)


class Series:
    """One line or one layer of bars: a name, a CSS colour variable, values."""

    def __init__(self, name: str, colour: str, values: Sequence[float | None]) -> None:
        self.name = name
        self.colour = colour
        self.values = list(values)


def bars(labels: Sequence[str], layers: Sequence[Series], *, title: str) -> str:
    """Stacked bars over time."""
    sums = [sum(layer.values[i] or 0 for layer in layers) for i in range(len(labels))]
    top = nice(max(sums, default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), _LEAST_BARS)
    parts = [_frame(top, labels, step)]
    for i, label in enumerate(labels):
        base = 0.0
        told = ", ".join(f"{layer.name} {layer.values[i] or 0:,.0f}" for layer in layers)
        parts.append(f"<g><title>{escape(label)}: {escape(told)}</title>")
        for layer in layers:
            value = layer.values[i] or 0
            if value:
                high = value / top * _plot_height()
                x, width = _LEFT + i * step + step * 0.08, max(step * 0.84, 0.8)
                y = HEIGHT - _BOTTOM - (base + value) / top * _plot_height()
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(high, 0.6):.1f}"'
                    f' fill="var({layer.colour})"/>'
                )
                base += value
        parts.append("</g>")
    return _svg(parts, title) + legend(layers)


def lines(labels: Sequence[str], series: Sequence[Series], *, title: str, unit: str = "") -> str:
    """Lines over time; a gap in the values is a gap in the line."""
    known = [value for one in series for value in one.values if value is not None]
    top = nice(max(known, default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), _LEAST_BARS)
    parts = [_frame(top, labels, step, unit)]
    for one in series:
        for run in _runs(one.values):
            points = " ".join(
                f"{_LEFT + (i + 0.5) * step:.1f},{HEIGHT - _BOTTOM - value / top * _plot_height():.1f}"
                for i, value in run
            )
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="var({one.colour})" stroke-width="2"/>'
            )
            parts += [
                f'<circle cx="{_LEFT + (i + 0.5) * step:.1f}" r="2.5" fill="var({one.colour})" '
                f'cy="{HEIGHT - _BOTTOM - value / top * _plot_height():.1f}">'
                f"<title>{escape(labels[i])}: {escape(one.name)} {value:,.0f}{escape(unit)}</title></circle>"
                for i, value in run
            ]
    return _svg(parts, title) + legend(series)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((i, value))
    return [run for run in runs if run]


def sparkline(values: Sequence[float], *, colour: str = "--bad") -> str:
    """A word-sized bar chart for a table cell."""
    if not values:
        return ""
    top = max(values) or 1
    width = 120
    step = width / len(values)
    rects = "".join(
        f'<rect x="{i * step:.2f}" y="{22 - value / top * 20:.1f}" width="{max(step * 0.85, 0.7):.2f}"'
        f' height="{value / top * 20:.1f}" fill="var({colour})"/>'
        for i, value in enumerate(values)
        if value
    )
    return f'<svg class="spark" viewBox="0 0 {width} 24" role="img" aria-label="over time">{rects}</svg>'


def time_unit(most_ms: float) -> tuple[int, str]:
    """(milliseconds of the unit, its name) in which a value is a number that a person reads."""
    return next((size, name) for limit, size, name in _TIMES if abs(most_ms) < limit)


def duration(ms: float | None) -> str:
    if ms is None:
        return "–"
    size, name = time_unit(ms)
    return f"{ms / size:.3g} {name}"


def waterfall(rows: Sequence[tuple[str, float, float, bool]], *, title: str) -> str:
    """One bar a hop: (label, start ms, end ms, slow)."""
    end = max((row[2] for row in rows), default=0) or 1
    high = 22
    label_width = 300
    scale = (WIDTH - label_width - 90) / end
    parts = []
    for i, (label, start, stop, slow) in enumerate(rows):
        x, width = label_width + start * scale, max((stop - start) * scale, 2)
        colour = "--bad" if slow else "--c1"
        parts.append(
            f'<text x="{label_width - 8}" y="{i * high + 15}" text-anchor="end" class="lbl">'
            f"{escape(_short(label))}</text>"
            f'<rect x="{x:.1f}" y="{i * high + 4}" width="{width:.1f}" height="{high - 8}" rx="2" '
            f'fill="var({colour})"><title>{escape(label)}: from {duration(start)} to {duration(stop)}'
            f"</title></rect>"
            f'<text x="{min(x + width + 4, WIDTH - 84):.1f}" y="{i * high + 15}" class="lbl">'
            f"{duration(stop - start)}</text>"
        )
    steps = [Series("step, from its parent to it", "--c1", ()), Series("slow step", "--bad", ())]
    return _svg(parts, title, high=len(rows) * high + 4) + legend(steps)


def share_bar(share: float, colour: str = "--c1") -> str:
    width = max(0.0, min(1.0, share)) * 100
    return (
        f'<span class="share"><i style="width:{width:.1f}%;background:var({colour})"></i></span>'
        f"<small>{share * 100:.1f} %</small>"
    )


def legend(series: Sequence[Series]) -> str:
    items = "".join(
        f'<span><i style="background:var({one.colour})"></i>{escape(one.name)}</span>' for one in series
    )
    return f'<div class="legend">{items}</div>'


def nice(value: float) -> float:
    """The next round number above: an axis should end on one."""
    if value <= 0:
        return 1
    power = 1.0
    while power * 10 < value:
        power *= 10
    while power > value:
        power /= 10
    return next((power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value), power * 10)


def _plot_height() -> int:
    return HEIGHT - _TOP - _BOTTOM


def _frame(top: float, labels: Sequence[str], step: float, unit: str = "") -> str:
    parts = []
    for line in range(_GRID_LINES + 1):
        y = HEIGHT - _BOTTOM - line / _GRID_LINES * _plot_height()
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="lbl">'
            f"{short_number(top * line / _GRID_LINES)}{escape(unit)}</text>"
        )
    every = max(1, -(-len(labels) // _LABELS))
    for i in range(0, len(labels), every):
        parts.append(
            f'<text x="{_LEFT + (i + 0.5) * step:.1f}" y="{HEIGHT - 8}" text-anchor="middle" class="lbl">'
            f"{escape(labels[i])}</text>"
        )
    return "".join(parts)


def short_number(value: float) -> str:
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{sign}"
    return f"{value:.3g}"


def _short(text: str, limit: int = 44) -> str:
    return text if len(text) <= limit else f"…{text[-limit + 1 :]}"


def _svg(parts: Sequence[str], title: str, *, high: int = HEIGHT) -> str:
    return (
        f'<div class="scroll"><svg class="plot" viewBox="0 0 {WIDTH} {high}" role="img" '
        f'aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
    )
