from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shinar.brokers.kafka.offsets import KafkaReceipt, Track


def taken(*offsets: int, start: int = 0, committed: int = -1001) -> Track:
    track = Track("t", 0, start, committed)
    for offset in offsets:
        track.took(offset)
    return track


def test_the_position_stops_at_the_first_unfinished_one():
    track = taken(0, 1, 2, 3)
    track.finish(1)
    track.finish(3)
    assert track.position() == 0
    track.finish(0)
    assert track.position() == 2
    track.finish(2)
    assert track.position() == 4


def test_gaps_of_a_compacted_topic_do_not_hold_it_up():
    track = taken(5, 9, 40, start=5, committed=5)
    for offset in (40, 5, 9):
        track.finish(offset)
    assert track.position() == 41


def test_a_fresh_partition_has_nothing_to_commit():
    assert taken().due() is None
    assert taken(0).due() is None
    assert taken(start=7, committed=7).due() is None


def test_due_is_told_once_until_it_moves():
    track = taken(0, 1)
    track.finish(0)
    assert track.due() == 1
    track.sent = 1
    assert track.due() is None
    track.finish(1)
    assert track.due() == 2


def test_finishing_twice_or_late_changes_nothing():
    track = taken(0, 1)
    track.finish(0)
    track.position()
    track.finish(0)
    assert track.position() == 1
    assert track.finished(0)
    assert not track.finished(1)


def test_a_record_that_goes_round_voids_earlier_receipts():
    track = taken(0)
    old = KafkaReceipt(track, 0, 0, None)
    assert old.held
    new = KafkaReceipt(track, 0, track.again(0), None)
    assert not old.held
    assert new.held
    track.live = False
    assert not new.held


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=40).map(
        lambda steps: [sum(steps[: i + 1]) for i in range(len(steps))]
    ),
    st.data(),
)
def test_in_any_order_nothing_unfinished_is_ever_passed(offsets, data):
    track = taken(*offsets, start=offsets[0])
    order = data.draw(st.permutations(offsets))
    left = set(offsets)
    for offset in order:
        track.finish(offset)
        left.discard(offset)
        assert track.position() == (min(left) if left else offsets[-1] + 1)
