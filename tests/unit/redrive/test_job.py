"""A redrive on the in-process broker and on SQLite: who goes, who stays and why, and what the ledger says."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from redrive_letters import body, change_job, kill, plant
from shinar.brokers import Broker, Delivery, Outgoing, connect
from shinar.clock import PinnedClock
from shinar.envelope import DeadReason, dead_letter, dead_letter_copy, judge, redrive_copy
from shinar.errors import BrokerError, BrokerUnavailable, ContractError, Unsupported, UsageError
from shinar.idempotency import open_store
from shinar.redrive import JobState, Ledger, Line, LineState, Redrive, Spec
from shinar.redrive.letters.letter import digest_of, read
from shinar.redrive.letters.read import read_letters
from shinar.redrive.rehearse import rehearse
from shinar.settlement import Traits
from shinar.worker import GiveUp, bypass_external_effects, is_replay


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/orders.dlq"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    opened = connect(url)
    yield opened
    opened.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [delivery.body for delivery in broker.browse(queue)]


def die(broker: Broker, queue: str = "orders") -> None:
    """Everything in the queue fails again."""
    for delivery in list(broker.reserve(queue, 1000, 0)):
        block = dead_letter(DeadReason.FAILED, queue=queue, attempts=3, failed_ms=99, error="again")
        copy = Outgoing(dead_letter_copy(delivery.body, block), delivery.headers)
        broker.move("orders.dlq", [(delivery, copy)])


def test_a_copy_keeps_all_but_the_block_and_the_count(url: str, broker: Broker, ledger: Ledger) -> None:
    dead = plant(broker, "orders.dlq", "orders", 1)[0]
    assert Redrive(url, ledger=ledger).run().published == 1
    (sent,) = broker.browse("orders")
    assert sent.body == redrive_copy(dead)
    assert b"dead_letter" not in sent.body
    assert (sent.headers, sent.key) == ({"x-n": "0"}, b"key")
    message, before = judge(sent.body).message, judge(dead).message
    assert message is not None
    assert before is not None
    assert (message.attempts, message.meta, message.trace_id) == (0, before.meta, before.trace_id)


def test_poison_and_foreign_versions_stay(url: str, broker: Broker, ledger: Ledger) -> None:
    planted = plant(broker, "orders.dlq", "orders", 12)
    receipt = Redrive(url, ledger=ledger).run()
    assert (receipt.selected, receipt.published, receipt.skipped) == (12, 10, 2)
    assert receipt.why_skipped == {"poison": 1, "version": 1}
    assert bodies(broker, "orders.dlq") == planted[10:]

    asked = Redrive(url, Spec(include_poison=True, include_version=True), ledger=ledger).run()
    assert asked.published == 2
    assert bodies(broker, "orders")[-2:] == [b'{"broken":10', redrive_copy(planted[11])]


def test_a_loop_ends(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 2)
    for generation in (1, 2):
        time.sleep(0.01)  # jobs are listed by the millisecond they were made in
        assert Redrive(url, ledger=ledger).run().published == 2
        die(broker)
        ids = [letter.id or "" for letter in read_letters(broker, "orders.dlq")]
        assert ledger.generations(ids) == dict.fromkeys(ids, generation)
    plan = Redrive(url, ledger=ledger).dry_run()
    assert plan.why_skipped == {"loop": 2}
    assert [ledger.receipt(job.id).died_again for job in ledger.jobs()] == [0, 2]
    assert Redrive(url, ledger=ledger).run().why_skipped == {"loop": 2}
    assert len(bodies(broker, "orders.dlq")) == 2
    assert Redrive(url, Spec(loop_limit=0), ledger=ledger).run().published == 2


def test_a_patched_copy_is_a_new_message_of_the_same_line(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 1)
    for _ in range(2):
        old = next(read_letters(broker, "orders.dlq")).id
        spec = Spec(sets=("data.amount = 7",))
        assert Redrive(url, spec, ledger=ledger).run().published == 1
        message = judge(bodies(broker, "orders")[0]).message
        assert message is not None
        assert message.data["amount"] == 7
        assert message.meta.id != old
        die(broker)
    assert Redrive(url, Spec(sets=("data.amount = 7",)), ledger=ledger).run().why_skipped == {"loop": 1}


def test_what_succeeded_is_left(url: str, broker: Broker, ledger: Ledger) -> None:
    planted = plant(broker, "orders.dlq", "orders", 4)
    store = open_store("memory://done")
    first = judge(planted[0]).message
    assert first is not None
    store.remember([first.meta.id])
    redrive = Redrive(url, ledger=ledger, succeeded=store)
    assert redrive.dry_run().why_skipped == {"succeeded": 1}
    assert redrive.run().why_skipped == {"succeeded": 1}
    assert bodies(broker, "orders.dlq") == planted[:1]


def test_a_schema_says_who_would_die_again(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 4)

    def validate(_urn: str, data: dict[str, object]) -> None:
        if data["amount"] == 0:
            raise ContractError("must be positive", pointer="/data/amount")

    assert Redrive(url, ledger=ledger, validate=validate).dry_run().why_skipped == {"schema": 1}
    mended = Redrive(url, Spec(sets=("data.amount = 1",)), ledger=ledger, validate=validate)
    assert mended.dry_run().sendable == 4
    broken = Redrive(url, Spec(sets=("data.amount = 0",)), ledger=ledger, validate=validate)
    assert broken.run().why_skipped == {"schema": 4}
    assert len(bodies(broker, "orders.dlq")) == 4


def test_bypass_travels_or_is_refused(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 1)
    with pytest.raises(Unsupported, match="bq-replay-bypass"):
        Redrive(url, Spec(bypass=True), to="redis://localhost/orders?layout=laravel", ledger=ledger).run()
    assert Redrive(url, Spec(bypass=True), ledger=ledger).run().published == 1
    assert next(broker.browse("orders")).headers["bq-replay-bypass"] == "1"


def test_another_queue_another_broker(url: str, broker: Broker, ledger: Ledger, tmp_path: Path) -> None:
    planted = plant(broker, "orders.dlq", "orders", 3)
    assert Redrive(url, Spec(limit=1), to="sandbox", ledger=ledger).run().published == 1
    assert bodies(broker, "sandbox") == [redrive_copy(planted[0])]
    other = f"sqlite://{tmp_path}/other.db"
    assert Redrive(url, to=other, ledger=ledger).run().published == 2
    target = connect(other)
    assert bodies(target, "orders") == [redrive_copy(dead) for dead in planted[1:]]
    target.close()
    assert bodies(broker, "orders.dlq") == []


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_choices(scheme: str, url: str, ledger: Ledger, tmp_path: Path) -> None:
    place = url if scheme == "memory" else f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    planted = plant(broker, "orders.dlq", "orders", 24)
    ids = [letter.id or "" for letter in read_letters(broker, "orders.dlq")]
    print_ = next(read_letters(broker, "orders.dlq")).fingerprint
    assert Redrive(place, Spec(fingerprint=print_[:6]), ledger=ledger).dry_run().selected == 2
    assert Redrive(place, Spec(ids=tuple(ids[3:5])), ledger=ledger).dry_run().selected == 2
    assert Redrive(place, Spec(since_ms=1_763_172_600_000 + 2200), ledger=ledger).dry_run().selected >= 1
    assert Redrive(place, Spec(where="data.n between 3 and 5"), ledger=ledger).dry_run().selected == 3
    receipt = Redrive(place, Spec(where="data.n between 3 and 5", limit=2), ledger=ledger).run()
    assert (receipt.selected, receipt.published) == (2, 2)
    assert bodies(broker, "orders.dlq") == [dead for n, dead in enumerate(planted) if n not in (3, 4)]
    broker.close()


class Flaky:
    """A broker whose move fails from a point on; everything else is the real one's."""

    def __init__(self, inner: Broker, moves: int) -> None:
        self._inner, self._left = inner, moves

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def move(self, queue: str, copies: list[tuple[Delivery, Outgoing]]) -> object:
        self._left -= 1
        if self._left < 0:
            raise BrokerUnavailable("cut", broker="memory", queue=queue)
        return self._inner.move(queue, copies)


def test_a_cut_pauses_and_resume_goes_on(
    url: str, broker: Broker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(broker, "orders.dlq", "orders", 600)
    redrive = Redrive(url, Spec(where="lang = 'python' and reason = 'failed'"), ledger=ledger)
    with monkeypatch.context() as patched:
        patched.setattr("shinar.redrive.send.route.connect", lambda *_: Flaky(broker, 1))
        middle = redrive.run()
    (job,) = ledger.jobs()
    assert (middle.job, middle.state, job.state) == (job.id, JobState.PAUSED, JobState.PAUSED)
    assert "cut" in job.note
    assert not middle.adds_up
    assert 0 < middle.published < middle.selected
    assert middle.selected == middle.published + middle.left
    receipt = Redrive(url, Spec(where="lang = 'python' and reason = 'failed'"), ledger=ledger).resume(job.id)
    assert receipt.adds_up
    assert receipt.published == receipt.selected == 150
    gone = {n for n in range(600) if n % 12 in (5, 7, 8)}
    assert bodies(broker, "orders.dlq") == [dead for n, dead in enumerate(planted) if n not in gone]
    assert len(set(bodies(broker, "orders"))) == 150


def test_an_unchecked_intent_is_told(url: str, broker: Broker, ledger: Ledger, tmp_path: Path) -> None:
    """Cross-broker, killed between confirmation and ledger: found on the target, or said to be doubtful."""
    planted = plant(broker, "orders.dlq", "orders", 2)
    other = f"sqlite://{tmp_path}/other.db"
    redrive = Redrive(url, to=other, ledger=ledger)
    job, _ = redrive.prepare()
    intents = [
        msgspec.structs.replace(line, copy=digest_of(redrive_copy(original(planted, line))))
        for line in ledger.lines_in(job.id, LineState.PLANNED)
    ]
    ledger.record_intent(job.id, intents)
    target = connect(other)
    target.publish("orders", [Outgoing(redrive_copy(planted[0]))])  # the first one did arrive
    receipt = Redrive(url, to=other, ledger=ledger).resume(job.id)
    assert (receipt.published, receipt.maybe_twice) == (2, 1)
    assert sorted(bodies(target, "orders")) == sorted(redrive_copy(dead) for dead in planted)
    target.close()
    assert bodies(broker, "orders.dlq") == []


def test_a_settlement_lost_in_a_crash(url: str, broker: Broker, ledger: Ledger, tmp_path: Path) -> None:
    """The ledger says acked, the broker never heard of it: the original goes, and no second copy comes."""
    planted = plant(broker, "orders.dlq", "orders", 3)
    other = f"sqlite://{tmp_path}/other.db"
    spec = Spec(where="data.n < 2")
    job, _ = Redrive(url, spec, to=other, ledger=ledger).prepare()
    target = connect(other)
    target.publish("orders", [Outgoing(redrive_copy(dead)) for dead in planted[:2]])
    lines = list(ledger.lines_in(job.id, LineState.PLANNED))
    ledger.record_acked(job.id, lines)
    kill(ledger, job.id)
    receipt = Redrive(url, spec, to=other, ledger=ledger).resume(job.id)
    assert (receipt.published, receipt.maybe_twice, receipt.adds_up) == (2, 0, True)
    assert bodies(broker, "orders.dlq") == planted[2:]
    assert len(bodies(target, "orders")) == 2
    target.close()


def original(planted: list[bytes], line: Line) -> bytes:
    return next(dead for dead in planted if digest_of(dead) == line.digest)


class Refusing(Flaky):
    """Takes nothing of one URN, for good."""

    def move(self, queue: str, copies: list[tuple[Delivery, Outgoing]]) -> object:
        if any(b"urn:babel:stock" in copy.body for _, copy in copies):
            raise BrokerError("not here", broker="memory", queue=queue)
        return self._inner.move(queue, copies)


def test_failures_are_told_and_tried_again(
    url: str, broker: Broker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(broker, "orders.dlq", "orders", 24)
    with monkeypatch.context() as patched:
        patched.setattr("shinar.redrive.send.route.connect", lambda *_: Refusing(broker, 0))
        receipt = Redrive(url, ledger=ledger).run()
    assert not receipt.adds_up
    assert (receipt.published, receipt.failed, receipt.skipped) == (14, 6, 4)
    assert list(receipt.why_failed.values()) == [6]
    stay = (5, 6, 7, 10, 11)
    assert bodies(broker, "orders.dlq") == [dead for n, dead in enumerate(planted) if n % 12 in stay]
    again = Redrive(url, ledger=ledger).resume(receipt.job)
    assert (again.published, again.failed, again.adds_up) == (20, 0, True)


def test_the_failure_ratio_stops(
    url: str, broker: Broker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(broker, "orders.dlq", "orders", 1200)
    spec = Spec(where="urn = 'urn:babel:stock:moved'", max_failure_ratio=0.5)
    with monkeypatch.context() as patched:
        patched.setattr("shinar.redrive.send.route.connect", lambda *_: Refusing(broker, 0))
        receipt = Redrive(url, spec, ledger=ledger).run()
    assert receipt.state == JobState.PAUSED
    assert 20 <= receipt.failed < 300
    assert receipt.selected == receipt.failed + receipt.left == 300
    assert "over the ratio" in ledger.job(receipt.job).note
    assert len(bodies(broker, "orders.dlq")) == 1200


def test_what_another_consumer_holds_is_not_gone(url: str, broker: Broker, ledger: Ledger) -> None:
    planted = plant(broker, "orders.dlq", "orders", 10)
    redrive = Redrive(url, ledger=ledger)
    job, plan = redrive.prepare()
    assert plan.sendable == 10
    other = connect(url)
    held = other.reserve("orders.dlq", 3, 0)
    receipt = redrive.run(job)
    assert (receipt.state, receipt.published, receipt.left) == (JobState.PAUSED, 7, 3)
    assert "another consumer" in ledger.job(job.id).note
    other.release(held)
    other.close()
    done = Redrive(url, ledger=ledger).resume(job.id)
    assert (done.published, done.adds_up) == (10, True)
    assert sorted(bodies(broker, "orders")) == sorted(redrive_copy(dead) for dead in planted)


def test_cancelled_from_elsewhere(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 24)
    redrive = Redrive(url, ledger=ledger)
    job, _ = redrive.prepare()
    assert not ledger.cancel(job.id)
    receipt = redrive.resume(job.id)
    assert receipt.state == JobState.CANCELLED
    assert receipt.published == 0
    assert len(bodies(broker, "orders.dlq")) == 24


def test_a_second_runner_is_refused(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 2)
    redrive = Redrive(url, ledger=ledger)
    job, _ = redrive.prepare()
    change_job(ledger, job.id, state=JobState.RUNNING, runner="elsewhere:1", seen_ms=ledger.clock.epoch_ms())
    with pytest.raises(UsageError, match="elsewhere"):
        redrive.resume(job.id)
    change_job(ledger, job.id, seen_ms=0)
    assert redrive.resume(job.id).published == 2


def test_taken_by_somebody_else_meanwhile(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 4)
    redrive = Redrive(url, ledger=ledger)
    job, _ = redrive.prepare()
    broker.ack(broker.reserve("orders.dlq", 1, 0))
    receipt = redrive.run(job)
    assert (receipt.published, receipt.why_skipped) == (3, {"gone": 1})
    assert receipt.adds_up


def test_a_native_dead_letter_queue_names_its_own() -> None:
    plain = redrive_copy(body(0, "somewhere"))
    letter = read(
        Delivery(plain, "orders/$DeadLetterQueue"), Traits(name="x", native_dlq_suffix="/$DeadLetterQueue")
    )
    assert letter.target(Traits(name="x", native_dlq_suffix="/$DeadLetterQueue")) == "orders"
    assert letter.target(Traits(name="x")) == "somewhere"


def test_a_slow_rate_does_not_make_small_reads(url: str, broker: Broker, ledger: Ledger) -> None:
    clock = PinnedClock(1_763_172_600.0)
    plant(broker, "orders.dlq", "orders", 240)
    started_s = clock.monotonic_s()
    redrive = Redrive(url, Spec(where="data.kind = 0", rate_per_s=2), ledger=ledger, clock=clock)
    assert redrive.run().published == 20
    assert 9.0 <= clock.monotonic_s() - started_s < 30.0


def test_identical_twins_are_two_messages(url: str, broker: Broker, ledger: Ledger) -> None:
    twin = body(0, "orders")
    broker.publish("orders.dlq", [Outgoing(twin), Outgoing(twin), Outgoing(body(1, "orders"))])
    receipt = Redrive(url, Spec(where="data.n = 0"), ledger=ledger).run()
    assert (receipt.selected, receipt.published) == (2, 2)
    assert bodies(broker, "orders") == [redrive_copy(twin)] * 2


def test_the_order_of_identical_letters_survives_a_kill(ledger: Ledger, tmp_path: Path) -> None:
    """The queue was turned as far as the second X when the run was killed: X b X a is put right again."""
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    stays, first, second, goes = (body(n, "orders") for n in (1, 2, 3, 0))
    order = [stays, first, stays, second]
    broker.publish("orders.dlq", [Outgoing(one) for one in (*order, goes)])
    job, _ = Redrive(place, Spec(where="data.n = 0"), ledger=ledger).prepare()
    broker.release(broker.reserve("orders.dlq", 2, 0))
    assert bodies(broker, "orders.dlq") == [stays, second, goes, stays, first]
    kill(ledger, job.id)
    assert Redrive(place, Spec(where="data.n = 0"), ledger=ledger).resume(job.id).published == 1
    assert bodies(broker, "orders.dlq") == order
    broker.close()


def test_a_rehearsal_touches_nothing(url: str, broker: Broker, ledger: Ledger) -> None:
    planted = plant(broker, "orders.dlq", "orders", 24)
    effects: list[int] = []
    replays: list[bool] = []

    def created(message) -> GiveUp | None:
        replays.append(is_replay())
        bypass_external_effects(lambda: effects.append(1))
        if message.data["kind"] == 3:
            raise ValueError(f"order {message.data['n']} is odd")
        return GiveUp("no") if message.data["kind"] == 2 else None

    async def paid(message) -> None:
        assert message.attempts == 0

    handlers = {"urn:babel:orders:created": created, "urn:babel:orders:paid": paid}
    where = "urn like 'urn:babel:orders:%' or urn = 'urn:babel:stock:moved'"
    result = rehearse(Redrive(url, Spec(where=where), ledger=ledger), handlers)
    assert (result.ran, result.passed, result.failed) == (16, 6, 10)
    assert result.errors == {
        "ValueError: order <n> is odd": 2,
        "GiveUp: no": 2,
        "no handler for urn:babel:stock:moved": 6,
    }
    assert effects == []
    assert set(replays) == {True}
    assert bodies(broker, "orders.dlq") == planted
