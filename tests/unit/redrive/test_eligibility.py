"""Who goes back: one pure decision, and the same answer from a dry run and a run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive_letters import body, change_job, plant
from shinar.brokers import Broker, Delivery, Outgoing, connect
from shinar.clock import PinnedClock
from shinar.errors import ConfigError, PublishFailed
from shinar.idempotency import open_store
from shinar.redrive import JobState, Ledger, Redrive, Spec
from shinar.redrive.eligibility import Destination, JobRules, Known, decide
from shinar.redrive.letters.letter import read
from shinar.settlement import Traits

SOURCE = Traits(name="list")
NOW = Known(now_ms=1_763_172_700_000)


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


def why(dlq: str, said: str, spec: Spec | None = None, traits: Traits = SOURCE, to: str = "") -> str:
    letter = read(Delivery(body(0, said), dlq), traits)
    rules = JobRules(spec or Spec(), traits, Destination(to, True, lambda _: traits))
    return decide(letter, NOW, rules).why


def test_a_letter_reaches_its_own_queue_only() -> None:
    sqs = Traits(name="sqs", dlq_suffix="-dlq", kind_suffix=".fifo")
    native = Traits(name="x", native_dlq_suffix="/$DeadLetterQueue")
    assert why("orders.dlq", "orders") == ""
    assert why("orders-dlq.fifo", "orders.fifo", traits=sqs) == ""
    assert why("orders/$DeadLetterQueue", "orders", traits=native) == ""
    assert why("a.dlq", "payments") == "outside: payments"
    assert why("failed", "payments") == "outside: payments", "a name that says nothing allows nothing"
    assert why("a.dlq", "payments", Spec(any_target=True)) == ""
    assert why("a.dlq", "payments", to="elsewhere") == ""
    assert why("a.dlq", "a.dlq", Spec(any_target=True)) == "no target"


def test_a_deputy_is_not_confused(url: str, broker: Broker, ledger: Ledger) -> None:
    broker.publish("orders.dlq", [Outgoing(body(0, "payments")), Outgoing(body(1, "orders"))])
    assert Redrive(url, ledger=ledger).dry_run().why_skipped == {"outside": 1}
    receipt = Redrive(url, ledger=ledger).run()
    assert (receipt.published, receipt.why_skipped) == (1, {"outside": 1})
    assert list(broker.browse("payments")) == []
    assert Redrive(url, Spec(any_target=True), ledger=ledger).run().published == 1


@pytest.mark.parametrize("to", ["orders.dlq", "{url}", "{server}/orders.dlq?lease_s=7"])
def test_the_dead_letter_queue_is_not_a_target(url: str, ledger: Ledger, to: str) -> None:
    with pytest.raises(ConfigError, match="dead-letter queue itself"):
        Redrive(url, to=to.format(url=url, server=url.rpartition("/")[0]), ledger=ledger)
    assert ledger.jobs() == []


def test_copies_of_one_id_in_one_job_are_one_generation(url: str, broker: Broker, ledger: Ledger) -> None:
    """Many steps, so that the later copies find the earlier ones in the ledger."""
    broker.publish("orders.dlq", [Outgoing(body(0, "orders"))] * 30)
    spec = Spec(rate_per_s=50)
    clock = PinnedClock(1_763_172_600.0)
    assert Redrive(url, spec, ledger=ledger).dry_run().sendable == 30
    receipt = Redrive(url, spec, ledger=ledger, clock=clock).run()
    assert (receipt.published, receipt.skipped) == (30, 0)


def test_two_of_one_id_into_a_window_are_told(
    url: str, broker: Broker, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target would confirm the second and throw it away."""
    old = body(0, "orders").replace(b'"created_at":', b'"created_at":1,"was":')
    broker.publish("orders.dlq", [Outgoing(old)] * 2)
    window = Traits(name="fifo", dedup_window_s=300.0)
    monkeypatch.setattr("shinar.redrive.job.traits", lambda _: window)
    redrive = Redrive(url, to=f"sqlite://{tmp_path}/other.db", ledger=ledger)
    plan = redrive.dry_run()
    assert (plan.sendable, plan.why_skipped) == (1, {"dedup window": 1})


def test_resume_asks_for_what_it_cannot_keep(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 2)
    store = open_store("memory://done")
    spec = Spec(skip_succeeded="redis://:***@h/0")
    job, _ = Redrive(url, spec, ledger=ledger, succeeded=store).prepare()
    change_job(ledger, job.id, state=JobState.PAUSED)
    with pytest.raises(ConfigError, match="--skip-succeeded"):
        Redrive(url, ledger=ledger).resume(job.id)
    assert Redrive(url, ledger=ledger, succeeded=store).resume(job.id).published == 2


class Unsure:
    """A broker that takes everything and confirms only the first of a batch."""

    def __init__(self, inner: Broker) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def publish(self, queue: str, messages: list[Outgoing]) -> None:
        self._inner.publish(queue, messages)
        raise PublishFailed("no answer", total=len(messages), unconfirmed=tuple(range(1, len(messages))))


def test_what_was_not_confirmed_may_come_twice_and_says_so(
    url: str, broker: Broker, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(broker, "orders.dlq", "orders", 3)
    other = f"sqlite://{tmp_path}/other.db"
    target = connect(other)
    with monkeypatch.context() as patched:
        patched.setattr(
            "shinar.redrive.send.route.connect",
            lambda where, clock: Unsure(target) if where.scheme == "sqlite" else connect(where, clock),
        )
        receipt = Redrive(url, to=other, ledger=ledger).run()
    assert (receipt.published, receipt.failed) == (1, 2)
    target = connect(other)
    target.ack(target.reserve("orders", 10, 0))  # a consumer has them: nobody can look for them any more
    again = Redrive(url, to=other, ledger=ledger).resume(receipt.job)
    assert (again.published, again.maybe_twice) == (3, 2)
    assert len(list(target.browse("orders"))) == 2
    target.close()


def test_a_rate_is_even(url: str, broker: Broker, ledger: Ledger) -> None:
    clock = PinnedClock(1_763_172_600.0)
    broker.publish("orders.dlq", [Outgoing(body(0, "orders"))] * 600)
    sent: list[tuple[float, int]] = []
    redrive = Redrive(url, Spec(rate_per_s=150), ledger=ledger, clock=clock)
    redrive.run(progress=lambda count: sent.append((clock.monotonic_s(), count)))
    most = max(sum(count for at_s, count in sent if start <= at_s < start + 1) for start, _ in sent)
    assert sum(count for _, count in sent) == 600
    assert 140 <= most <= 165


def test_a_dry_run_says_what_it_did_not_see(url: str, broker: Broker, ledger: Ledger) -> None:
    plant(broker, "orders.dlq", "orders", 5)
    assert len(broker.reserve("orders.dlq", 2, 0)) == 2
    plan = Redrive(url, ledger=ledger).dry_run()
    assert (plan.looked, plan.reserved) == (3, 2)
