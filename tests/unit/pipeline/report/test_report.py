"""The page: complete, self-contained, and harmless whatever a producer sends."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shinar.clock import PinnedClock
from shinar.pipeline.pipeline import Pipeline
from shinar.pipeline.report.charts import Series, bars, nice, sparkline
from shinar.pipeline.report.write import write_report
from unit.pipeline.lakes import NOON, envelope, rows, spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

EVIL = "<script>alert(1)</script>\"'&"


class Reader(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    job = Pipeline(spark(), lake=str(lake), job="job", typed=False)
    bodies = [
        envelope(n, f"urn:babel:shop:{EVIL}", {EVIL: EVIL}, trace=f"{EVIL}{n // 2}", at=NOON + timedelta(n))
        for n in range(4)
    ]
    job.process(rows([*bodies, bodies[0], f"{{{EVIL}".encode()], queue=EVIL))
    dead = {"exception": EVIL, "error": f"{EVIL} 1", "original_queue": EVIL}
    job.process(rows([envelope(9, dead=dead)], queue="orders.dlq"))
    out = write_report(spark(), str(lake), str(tmp_path / "out" / "report.html"), clock=PinnedClock(1.8e9))
    page = out.read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert all(address.startswith("#") for address in reader.addresses)
    assert not re.search(r"https?://", page)
    assert "prefers-color-scheme:dark" in page
    text = " ".join(reader.text)
    for words in ("7", "adds up", "yes", "<script>alert(1)</script>", "made 2027-01-15 08:00:00"):
        assert words in text
    for anchor in (address for address in reader.addresses if address.startswith("#")):
        assert f'id="{anchor[1:]}"' in page


def test_an_empty_lake_has_a_page(tmp_path: Path) -> None:
    Pipeline(spark(), lake=str(tmp_path), job="job")
    page = write_report(spark(), str(tmp_path), str(tmp_path / "report.html")).read_text()
    assert "no messages yet" in page
    assert "no dead letters" in page


def test_charts() -> None:
    drawn = bars(["<a>", "b"], [Series("x", "--c1", [1, None]), Series("y", "--c2", [2, 3])], title="<t>")
    assert drawn.count("<rect") == 3
    assert "&lt;a&gt;" in drawn
    assert 'aria-label="&lt;t&gt;"' in drawn
    assert sparkline([]) == ""
    assert [nice(value) for value in (0, 1, 3, 12, 99, 1001, 0.3)] == [1, 1, 5, 20, 100, 2000, 0.5]
