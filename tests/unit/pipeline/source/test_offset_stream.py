from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.brokers.registry import Replay
from shinar.clock import PinnedClock
from shinar.errors import ConfigError, StoreError
from shinar.pipeline.source import offset_stream as module
from shinar.pipeline.source.offset_stream import OffsetPlanner, _split, starting
from shinar.pipeline.source.options import StreamOptions, UrlRef


def planner(
    monkeypatch: pytest.MonkeyPatch, bounds: dict[int, tuple[int, int]], **more: object
) -> OffsetPlanner:
    log = Replay(lambda url, queue: dict(bounds), None, None)  # type: ignore[arg-type]  # not used here
    monkeypatch.setattr(module, "replay", lambda url: log)
    options = StreamOptions(
        **{
            "url": UrlRef("plain", "kafka://h/q"),
            "queues": ("q",),
            "landing": "",
            "stream_id": "s",
            "starting": "earliest",
            "max_records": 10,
            "max_bytes": None,
            "min_partitions": 0,
            "fail_on_data_loss": True,
            "include_headers": True,
            "ack_mode": "after-capture",
            "keep_segments": False,
            **more,
        }
    )  # type: ignore[arg-type]  # not used here
    return OffsetPlanner(options, PinnedClock())


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 50), min_size=1), st.integers(1, 40))
def test_batches_cover_every_offset_once(left: dict[int, int], most: int):
    with pytest.MonkeyPatch.context() as patch:
        plan = planner(patch, {n: (3, 3 + rows) for n, rows in left.items()})
        offset, seen = plan.initial_offset(), {n: 3 for n in left}
        for _ in range(500):
            end = plan.latest_offset(offset, most)
            if end == offset:
                break
            ranges = plan.partitions(offset, end)
            assert sum(part.end - part.start for part in ranges) <= most + len(left)
            for part in ranges:
                assert seen[part.partition] == part.start
                seen[part.partition] = part.end
            offset = end
        assert seen == {n: 3 + rows for n, rows in left.items()}


def test_a_new_partition_is_read_from_its_beginning(monkeypatch):
    plan = planner(monkeypatch, {0: (0, 5), 1: (7, 9)})
    end = plan.latest_offset({"q": {"0": 5}}, None)
    assert end == {"q": {"0": 5, "1": 9}}
    assert [(part.partition, part.start, part.end) for part in plan.partitions({"q": {"0": 5}}, end)] == [
        (1, 7, 9)
    ]


def test_what_retention_took_is_an_error_or_is_left_out(monkeypatch):
    with pytest.raises(StoreError, match="failOnDataLoss"):
        planner(monkeypatch, {0: (10, 20)}).latest_offset({"q": {"0": 5}}, None)
    assert planner(monkeypatch, {0: (10, 20)}, fail_on_data_loss=False).latest_offset({"q": {"0": 5}}, 4) == {
        "q": {"0": 14}
    }


def test_an_offset_beyond_the_end_is_another_topic(monkeypatch):
    at = {"q": {"0": 500}}
    with pytest.raises(StoreError, match="ends at 20, before the checkpoint's 500"):
        planner(monkeypatch, {0: (0, 20)}).latest_offset(at, None)
    careless = planner(monkeypatch, {0: (0, 20)}, fail_on_data_loss=False)
    assert careless.latest_offset(at, None) == {"q": {"0": 20}}


def test_offsets_of_a_logged_batch_that_are_not_there_are_an_error(monkeypatch):
    """A restart asks again for the batch it had planned; meanwhile the topic was made anew and is shorter."""
    start, end = {"q": {"0": 5}}, {"q": {"0": 50}}
    with pytest.raises(StoreError, match=r"ends at 20, but the checkpoint asks for 50.*failOnDataLoss"):
        planner(monkeypatch, {0: (0, 20)}).partitions(start, end)
    careless = planner(monkeypatch, {0: (0, 20)}, fail_on_data_loss=False)
    assert [(part.start, part.end) for part in careless.partitions(start, end)] == [(5, 20)]


def test_a_partition_that_is_gone_is_an_error(monkeypatch):
    start, end = {"q": {"0": 5, "1": 5}}, {"q": {"0": 20, "1": 9}}
    with pytest.raises(StoreError, match=r"q\[1\] does not exist any more"):
        planner(monkeypatch, {0: (0, 20)}).partitions(start, end)
    with pytest.raises(StoreError, match=r"q\[1\] does not exist any more"):
        planner(monkeypatch, {0: (0, 20)}).latest_offset(start, None)
    careless = planner(monkeypatch, {0: (0, 20)}, fail_on_data_loss=False)
    assert careless.latest_offset(start, None) == {"q": {"0": 20}}
    assert [part.partition for part in careless.partitions(start, end)] == [0]


@pytest.mark.parametrize("text", ['{"x":{"0":1}}', '{"t":{"7":1}}', '{"t":{"0":21}}', '{"t":{"0":-3}}'])
def test_starting_offsets_that_are_not_there_are_refused(text):
    with pytest.raises(ConfigError, match="startingOffsets"):
        starting(text, {"t": {0: (0, 20)}})


def test_starting_offsets():
    bounds = {"q": {0: (1, 9), 1: (2, 8)}}
    assert starting("earliest", bounds) == {"q": {"0": 1, "1": 2}}
    assert starting("latest", bounds) == {"q": {"0": 9, "1": 8}}
    assert starting('{"q": {"0": 5, "1": -1}}', bounds) == {"q": {"0": 5, "1": 8}}
    with pytest.raises(ConfigError, match="neither earliest nor latest"):
        starting("yesterday", bounds)


def test_sizes_are_not_known_beforehand(monkeypatch):
    with pytest.raises(ConfigError, match="maxRecordsPerTrigger"):
        planner(monkeypatch, {}, max_bytes=5)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 20))
def test_split_ranges_still_cover_everything(lengths: list[int], least: int):
    whole = [module.OffsetRange("q", n, 0, rows) for n, rows in enumerate(lengths)]
    parts = _split(whole, least)
    assert len(parts) >= min(least, sum(lengths))
    assert sorted((p.partition, at) for p in parts for at in range(p.start, p.end)) == sorted(
        (p.partition, at) for p in whole for at in range(p.start, p.end)
    )
