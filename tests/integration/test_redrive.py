"""Dead letters on real brokers: twelve kinds are found, a filter goes back once, the rest stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import embedded
from redrive_letters import KINDS, ROWS, Place, drained, everything, open_place, plant
from shinar.cli.main import main
from shinar.envelope import redrive_copy
from shinar.redrive import JobState, Ledger, Redrive, Spec, read_letters, summarise

__all__ = ["embedded"]

COUNT = 240
WHERE = "urn = 'urn:babel:orders:created' and exception like '%GatewayTimeout'"


@pytest.fixture(params=list(ROWS))
def place(request: pytest.FixtureRequest, tmp_path: Path, live_server: Callable[..., Any]) -> Place:
    return open_place(request.param, tmp_path, live_server, request)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


@pytest.mark.timeout(180)
def test_seen_rehearsed_and_sent_back(place: Place, ledger: Ledger) -> None:
    look = not place.traits.browse
    with place.broker() as broker:
        bodies = plant(broker, place.dlq, place.queue, COUNT)
        summary = summarise(read_letters(broker, place.dlq, reserve=look))
    assert summary.total == COUNT
    assert sorted(group.count for group in summary.groups.values()) == [COUNT // 12] * 12
    found = {(group.exception, group.urn, group.lang) for group in summary.groups.values()}
    assert {(exception, urn, lang) for lang, exception, _, urn in KINDS} <= found

    redrive = Redrive(place.redrive_url(), Spec(where=WHERE), ledger=ledger)
    before = snapshot(place)
    plan = redrive.dry_run(reserve=look)
    assert (plan.looked, plan.selected, plan.sendable) == (COUNT, COUNT // 12, COUNT // 12)
    assert plan.targets == {place.queue: COUNT // 12}
    assert snapshot(place) == before, "a dry run left a trace"
    same(place, everything(place), bodies)

    receipt = redrive.run()
    assert receipt.adds_up, receipt
    assert receipt.published == COUNT // 12
    meant = [body for n, body in enumerate(bodies) if n % 12 == 0]
    with place.broker() as broker:
        arrived = list(drained(broker, place.queue))
    assert sorted(arrived) == sorted(redrive_copy(body) for body in meant)
    if place.traits.replayable:
        # A log keeps them; the ledger remembers, and the group moves over a beginning that is done.
        assert everything(place) == bodies[1:]
        assert (
            Redrive(place.redrive_url(), Spec(where=WHERE), ledger=ledger).dry_run().already == len(meant) - 1
        )
    else:
        same(place, everything(place), [body for n, body in enumerate(bodies) if n % 12])

    rest = Redrive(place.redrive_url(), Spec(), ledger=ledger).run(reserve=look)
    assert rest.adds_up, rest
    assert rest.published == 9 * COUNT // 12
    assert rest.why_skipped == {"poison": COUNT // 12, "version": COUNT // 12}
    left = [body for n, body in enumerate(bodies) if n % 12 in (10, 11)]
    if place.traits.replayable:
        assert everything(place) == bodies[bodies.index(left[0]) :]
    else:
        same(place, everything(place), left)


def snapshot(place: Place) -> list[Any]:
    """All there is to see of the queue without touching it; nothing where it cannot be browsed."""
    if not place.traits.browse:
        return []
    with place.broker() as broker:
        depth = broker.depth(place.dlq)
        seen = [
            (d.body, d.key, dict(d.headers), dict(d.properties), d.native_count, d.position)
            for d in broker.browse(place.dlq)
        ]
        return [(depth.ready, depth.reserved, depth.delayed), *seen]


def same(place: Place, found: list[bytes], expected: list[bytes]) -> None:
    """Byte for byte, and in order where the broker has one."""
    if place.traits.ordered and place.traits.release_to != "front":
        assert found == expected
    else:
        assert sorted(found) == sorted(expected)


@pytest.mark.timeout(180)
def test_what_another_consumer_has_prefetched_is_told(
    tmp_path: Path, live_server: Callable[..., Any], request: pytest.FixtureRequest, ledger: Ledger
) -> None:
    """Pulsar hands a whole window to the first consumer that asks, looked at or not."""
    bare = open_place("pulsar", tmp_path, live_server, request)
    conf = live_server("pulsar").home / "standalone.conf"
    if not conf.exists():
        pytest.skip("this Pulsar has no admin address: nothing can be seen that is not handed out")
    port = next(line for line in conf.read_text().splitlines() if line.startswith("webServicePort="))
    admin = f"http://127.0.0.1:{port.partition('=')[2]}"
    place = Place("pulsar", f"{bare.url}?admin={admin}", bare.queue, bare.dlq)
    with place.broker() as broker:
        planted = plant(broker, place.dlq, place.queue, 10)
    redrive = Redrive(place.redrive_url(), ledger=ledger)
    job, plan = redrive.prepare()
    assert plan.sendable == 10
    with place.broker() as other:
        taken = other.reserve(place.dlq, 1, 20.0)
        assert len(taken) == 1
        receipt = redrive.run(job)
        assert receipt.state == JobState.PAUSED
        assert receipt.left == 10 - receipt.published > 0
        assert "another consumer" in ledger.job(job.id).note
    done = Redrive(place.redrive_url(), ledger=ledger).resume(job.id)
    assert (done.published, done.adds_up) == (10, True)
    with place.broker() as broker:
        assert sorted(drained(broker, place.queue)) == sorted(redrive_copy(dead) for dead in planted)


@pytest.mark.timeout(180)
def test_a_log_tells_sent_back_from_died_again(
    tmp_path: Path,
    live_server: Callable[..., Any],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kafka keeps what was sent back: nobody consumed it, so it did not die again."""
    place = open_place("kafka", tmp_path, live_server, request)
    with place.broker() as broker:
        plant(broker, place.dlq, place.queue, 24)
    url, ledger = str(place.redrive_url()), ["--ledger", str(tmp_path / "ledger.db")]
    assert main(["redrive", url, "--where", WHERE, "--yes", "--quiet", "--json", *ledger]) == 0
    sent = json.loads(capsys.readouterr().out)
    assert sent["published"] == 2
    assert main(["dlq", "summary", url, "--json", *ledger]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["died_again"] for row in rows] == [0] * len(rows)
    left = sum(row["count"] for row in rows)
    assert left == 22
    # The group moved over the first record; the other one is still in the log.
    assert "1 more are in this log" in err
    assert main(["dlq", "show", url, "--where", WHERE, "--json", *ledger]) == 0
    (shown,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (shown["redriven"], shown["sent_back_by"]) == (0, sent["job"])
