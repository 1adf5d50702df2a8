"""Values as HTML: numbers, times, tables and sections. All text is escaped unless it is `Html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any


def moment(value: datetime | None) -> str:
    if value is None:
        return "–"
    aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return aware.strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def section(title: str, body: str, note: str = "") -> str:
    small = f" <small>{escape(note)}</small>" if note else ""
    return f'<section id="{anchor(title)}"><h2>{escape(title)}{small}</h2>{body}</section>'


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


class Html(str):
    """Text that is already HTML; everything else in a table is escaped."""


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], empty: str, right: Sequence[int] = ()) -> str:
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=r' if i in right else ''}>{cell_html(cell)}</td>" for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return f'<p class="empty">{escape(empty)}</p>'
    head = "".join(f"<th{' class=r' if i in right else ''}>{escape(h)}</th>" for i, h in enumerate(heads))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def cell_html(value: Any) -> str:
    return value if isinstance(value, Html) else escape(str(value))
