"""The page: complete, self-contained, and harmless whatever a producer sends."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shinar.clock import PinnedClock
from shinar.pipeline.pipeline import Pipeline
from shinar.pipeline.report.charts import Series, bars, duration, nice, sparkline
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


def test_an_archive_has_a_page_over_its_creation(tmp_path: Path) -> None:
    """With what does not fit its typed table, masked samples, times a person reads, and a policy."""
    job = Pipeline(spark(), lake=str(tmp_path), job="job")
    bodies = [envelope(n, data={"amount": n}, trace="t", at=NOON + timedelta(hours=20 * n)) for n in range(3)]
    odd = envelope(9, data={"amount": "much"}, lang="node", trace="u")
    broken = b'{"job":"urn:x","data":{"email":"ann@example.com","phone":"0123"}'
    job.process(rows([*bodies, odd, broken]).drop("received_at", "verdict"))
    page = write_report(spark(), str(tmp_path), str(tmp_path / "report.html"), mask=["phone"]).read_text()
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page
    assert "messages created 2026-11-15 12:00:00 to 2026-11-17 04:00:00" in page
    assert "ann@example.com" not in page
    assert "0123" not in page
    assert "type_clash: long in the table, string here" in page
    assert "an archive does not say when its messages were received" in page
    assert "72,000,000 ms" not in page
    assert "20 h" in page
    assert "slow step" in page


def test_times_are_in_units_a_person_reads() -> None:
    shown = [duration(ms) for ms in (None, 0, 999, 1500, 90_000, 600_000, 66_895_437, 400_000_000)]
    assert shown == ["–", "0 ms", "999 ms", "1.5 s", "90 s", "10 min", "18.6 h", "4.63 d"]
    wide = bars(["one"], [Series("x", "--c1", [5])], title="t")
    (width,) = re.findall(r'<rect[^>]* width="([0-9.]+)"', wide)
    assert float(width) < 100  # a single bar is not a wall
