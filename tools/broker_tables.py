"""Write the tables of brokers in the docs from the registry and the brokers' traits.

    python tools/broker_tables.py            # write them
    python tools/broker_tables.py --check    # exit 1 if a page is not current

A page marks where a table goes: `<!-- brokers: NAME -->` … `<!-- /brokers -->`. Installed brokers of other
distributions get their rows with --all; the pages of this repository hold Shinar's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shinar.brokers.registry import ROWS, Row, rows, traits
from shinar.settlement import Traits

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARKED = re.compile(r"(<!-- brokers: (\w+) -->\n).*?(<!-- /brokers -->)", re.S)


def brokers(known: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    """Each broker once, under the scheme that stands first."""
    seen: set[str] = set()
    for scheme, row in known.items():
        if row.label not in seen:
            seen.add(row.label)
            yield scheme, row


def table(head: tuple[str, ...], lines: Iterator[tuple[str, ...]]) -> str:
    cells = [head, tuple("---" for _ in head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def guarantees(known: Mapping[str, Row]) -> str:
    head = (
        "broker", "a reservation lasts", "attempts from", "killed workers are counted", "delay", "headers",
        "ordering key", "browse", "depth", "settle from another process", "copy and settle in one step",
    )  # fmt: skip
    urls = [(row.label, row.example, row.variants) for _, row in brokers(known)]
    ways = [(name, url) for label, example, more in urls for name, url in ((label, example), *more.items())]
    return table(head, ((name, *_cells(traits(url))) for name, url in ways))


def _cells(found: Traits) -> tuple[str, ...]:
    lease = "connection" if found.lease_s is None else f"{found.lease_s:g} s"
    counted = found.lapse_counts or (found.count_base is not None and found.crash_counts)
    limit = "yes" if found.max_delay_s is None else f"up to {found.max_delay_s:,.0f} s"
    facts = (found.headers, found.key, found.browse, found.depth, found.portable_receipts, found.atomic_move)
    return (
        lease,
        found.attempts.replace("_", " "),
        "yes" if counted else "no",
        limit if found.delay else "no",
        *("yes" if yes else "no" for yes in facts),
    )


def urls(known: Mapping[str, Row]) -> str:
    head = ("broker", "URL", "install", "client")
    return table(head, (_address(row) for _, row in brokers(known)))


def _address(row: Row) -> tuple[str, ...]:
    name = f"[{row.label}]({row.page})" if row.page else row.label
    install = f"`pip install 'shinar[{row.extra}]'`" if row.extra else "`pip install shinar`"
    return name, f"`{row.example}`", install, row.distribution or "built in"


TABLES: dict[str, Callable[[Mapping[str, Row]], str]] = {"guarantees": guarantees, "urls": urls}


def current(text: str, known: Mapping[str, Row] = ROWS) -> str:
    """The page with its tables as they must be."""
    return MARKED.sub(lambda m: m[1] + TABLES[m[2]](known) + m[3], text)


def main(words: list[str]) -> int:
    known = rows() if "--all" in words else ROWS
    stale = [page for page in PAGES if current(page.read_text(), known) != page.read_text()]
    for page in stale:
        if "--check" in words:
            print(f"{page.relative_to(ROOT)} is not current: run python tools/broker_tables.py")
        else:
            page.write_text(current(page.read_text(), known))
            print(f"wrote {page.relative_to(ROOT)}")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
