"""A redrive from beginning to end: plan, write the ledger, send, resume, and the receipt.

receipt = Redrive("redis://localhost/orders.dlq", Spec(where="lang = 'php'")).run()
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Final

import msgspec

from shinar.brokers import Broker, connect, parse, traits
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.delivery.throttle import Pace
from shinar.errors import ConfigError, ShinarError, Unsupported, UsageError
from shinar.redrive.eligibility import Checks, Seen, Validate
from shinar.redrive.ledger.ledger import Job, JobState, Ledger, Line, LineState
from shinar.redrive.ledger.owner import whoami
from shinar.redrive.letters.letter import Letter, digest
from shinar.redrive.letters.read import UNREACHED, browse, letters
from shinar.redrive.letters.repair import require_known
from shinar.redrive.model import Receipt, Spec
from shinar.redrive.plan import Plan, Planner
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.arrivals import advance, mark_logs, settle_doubts
from shinar.redrive.send.breaker import Breaker
from shinar.redrive.send.patch import Function, Patch
from shinar.redrive.send.rate import in_hand, paced
from shinar.redrive.send.scan import BATCH, LAPSE_MARGIN_S, QUIET_S, Matcher, Pass
from shinar.redrive.send.sender import Route, Sender
from shinar.settlement.traits import Traits

#: Rounds through a queue before what was not met counts as gone.
ROUNDS: Final = 3
#: Between two looks whether somebody cancelled the job, and two signs of life.
CHECK_EVERY_S: Final = 1.0
#: Settlements this shortly before a crash may have been lost with the connection.
DOUBT_MS: Final = 5_000
GONE: Final = "gone"
HELD_ELSEWHERE: Final = (
    "{count} of them are in the queue and were not handed out: another consumer of it holds them, or has "
    "them prefetched; stop it and resume"
)


class Redrive:
    """Opens its brokers on use. Not for several threads at once, but `stop` may come from anywhere."""

    def __init__(
        self,
        url: str | BrokerUrl,
        spec: Spec | None = None,
        *,
        queue: str = "",
        to: str = "",
        ledger: Ledger | None = None,
        succeeded: Seen | None = None,
        validate: Validate | None = None,
        patch: Function | None = None,
        clock: Clock = SYSTEM,
        source: Broker | None = None,
    ) -> None:
        """`source` is read instead of the broker of the URL: a lake, which no URL scheme opens."""
        self._source = source
        self.url = parse(url) if isinstance(url, str) else url
        self.queue = queue or self.url.queue
        if not self.queue:
            raise ConfigError("name the dead-letter queue in the URL or with --queue", setting="queue")
        spec = spec or Spec()
        self.target_url, to_queue = _target(self.url, to or spec.to_queue)
        self.spec = msgspec.structs.replace(spec, to_queue=to_queue)
        self.ledger = ledger or Ledger(clock=clock)
        self._succeeded, self._validate, self._clock = succeeded, validate, clock
        self._patch = Patch(self.spec.sets, patch) if self.spec.sets or patch else None
        if self.spec.patch and patch is None:
            raise ConfigError("the function of this job must be given again", setting="--patch")
        self._chosen = Chosen(
            where=self.spec.where,
            where_errors=self.spec.where_errors,
            fingerprint=self.spec.fingerprint,
            since_ms=self.spec.since_ms,
            ids=self.spec.ids,
        )
        require_known(self.spec.repair)
        self._stopping = False
        self._unreached = 0
        #: Called with the number of messages that came to their end.
        self.progress: Callable[[int], None] = lambda _: None
        #: Called with the seconds at most before a wait for the leases of a run that died.
        self.waits: Callable[[float], None] = lambda _: None

    @property
    def traits(self) -> Traits:
        """Of the source."""
        return self._known()

    @property
    def where_skipped(self) -> int:
        """Dead letters that were left out because `where` raised an error."""
        return self._chosen.skipped

    def means(self, letter: Letter) -> bool:
        """Whether the job's choice includes this one."""
        return self._chosen(letter)

    def stop(self) -> None:
        """Finish what is in hand, tidy up, and pause the job."""
        self._stopping = True

    # -- planning

    def dry_run(self, *, reserve: bool = False) -> Plan:
        """Read only: nothing is sent, settled or written."""
        with self._route() as route:
            return self._planned(route, lambda _: None, reserve=reserve)

    def prepare(self, *, reserve: bool = False) -> tuple[Job, Plan]:
        """A job in the ledger with a line for every chosen message; nothing is sent yet."""
        with self._route() as route:
            job = self._new_job(planned=True)
            try:
                plan = self._planned(route, lambda lines: self._number(job.id, lines), reserve=reserve)
            except BaseException:
                self.ledger.change(job.id, state=JobState.CANCELLED, note="not planned to its end")
                self.ledger.close_open(job.id, LineState.SKIPPED, "cancelled", LineState.PLANNED)
                raise
            self.ledger.change(job.id, anchor=plan.anchor)
            return self.ledger.job(job.id), plan

    def _planned(self, route: Route, write: Callable[[Sequence[Line]], None], *, reserve: bool) -> Plan:
        planner = Planner(route, self._checks(route), self._patch, self._clock, self.spec.repair)
        planner.generations = self.ledger.generations
        planner.last_sent_ms = self.ledger.last_sent_ms
        planner.sent_before = lambda names: self.ledger.sent_before(self.url.masked, self.queue, names)
        found = letters(route.source, self.queue, reserve=reserve, clock=self._clock)
        with closing(found) as looked:
            return planner.plan(looked, self._chosen, self.spec.limit, write)

    def _number(self, job_id: str, lines: Sequence[Line]) -> None:
        """Byte-identical messages get a number each."""
        known = {
            name: len(found)
            for name, found in self.ledger.lines_of(job_id, [x.digest for x in lines]).items()
        }
        numbered: list[Line] = []
        for line in lines:
            at = known[line.digest] = known.get(line.digest, 0) + 1
            numbered.append(msgspec.structs.replace(line, n=at - 1))
        self.ledger.add(job_id, numbered)

    def _new_job(self, *, planned: bool) -> Job:
        now_ms = self._clock.epoch_ms()
        stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d-%H%M%S")
        job = Job(
            id=f"{stamp}-{secrets.token_hex(2)}",
            who=whoami(),
            created_ms=now_ms,
            source=self.url.masked,
            queue=self.queue,
            target=self.target_url.masked,
            spec=msgspec.json.encode(self.spec).decode(),
            planned=planned,
        )
        self.ledger.create(job)
        return job

    # -- running

    def run(self, job: Job | None = None, *, reserve: bool = False) -> Receipt:
        """Plan where the broker can be looked at, then send. Without browse (and without `reserve`) the
        chosen ones are found on the way."""
        if job is None:
            can_look = self._known().browse or reserve
            job = self.prepare(reserve=reserve)[0] if can_look else self._new_job(planned=False)
        return self._go(job, resumed=False)

    def resume(self, job_id: str) -> Receipt:
        """Go on where a run ended, however it ended. Failed messages are tried again."""
        job = self.ledger.job(job_id)
        if job.state in (JobState.DONE, JobState.CANCELLED) and not self.ledger.receipt(job.id).failed:
            return self.ledger.receipt(job.id)
        if (job.source, job.queue) != (self.url.masked, self.queue):
            raise UsageError(f"redrive {job.id} is about {job.source} queue {job.queue}")
        return self._go(job, resumed=True)

    def _go(self, job: Job, *, resumed: bool) -> Receipt:
        self.ledger.take_over(job)
        try:
            with self._route() as route:
                if resumed:
                    self._recover(job, route)
                self._pass(job, route, resumed=resumed)
                return self._finish(job, route)
        except BaseException as exc:
            note = str(exc) if isinstance(exc, ShinarError) else type(exc).__name__
            self.ledger.change(job.id, state=JobState.PAUSED, note=note[:500])
            raise

    def _recover(self, job: Job, route: Route) -> None:
        self.ledger.close_open(job.id, LineState.PLANNED, "", LineState.FAILED)
        if route.atomic:
            return  # an intent whose original is still there was not sent: the move was all or nothing
        settle_doubts(self.ledger, job.id, route.target, self.target_url)
        if route.log:
            self.ledger.close_open(job.id, LineState.ACKED, None, LineState.PUBLISHED)
        else:
            self.ledger.doubt_acks(job.id, DOUBT_MS)

    def _pass(self, job: Job, route: Route, *, resumed: bool) -> None:
        sender = self._sender(job, route)
        matcher = Matcher(self.ledger, job.id, route.source, self.spec.limit)
        matcher.chosen = None if job.planned else self._chosen
        matcher.count(self.ledger.receipt(job.id).selected)
        lease_s = route.source.traits.lease_s or 0.0
        rate = self.spec.rate_per_s
        pace = Pace(rate, BATCH, self._clock)
        send = paced(sender.send, pace, lambda: one.stopped())
        one = Pass(route.source, self.queue, matcher, send, clock=self._clock, batch=in_hand(rate, lease_s))
        one.waits = self.waits
        one.stopped = self._watch(job, sender, self._arrivals(route, one, sender.breaker))
        one.finished = lambda: job.planned and not self.ledger.open_count(job.id)
        if route.log:
            one.follow()
        elif route.source.traits.release_to == "back":
            self._turn(job, one, lease_s, resumed=resumed)
        else:
            if resumed and lease_s:
                self.waits(lease_s + LAPSE_MARGIN_S)
            one.hold(lease_s + LAPSE_MARGIN_S if resumed else QUIET_S)
            self._unreached = one.unreached

    def _turn(self, job: Job, one: Pass, lease_s: float, *, resumed: bool) -> None:
        depth = one.depth
        if resumed:
            one.wait_for_lapsed(lease_s)
            if one.stopped():
                return  # nothing was touched yet
            # First the rest of the broken round: it ends where the queue began.
            at = one.find(job.anchor)
            one.turn(depth() if at is None else at)
        for _ in range(ROUNDS):
            if (resumed and one.finished()) or one.stopped():
                return
            one.turn(depth())
            resumed = True
            if not one.finished():
                one.wait_for_lapsed(lease_s)
                if not depth():
                    return

    def _finish(self, job: Job, route: Route) -> Receipt:
        if self._stopping or self.ledger.state_of(job.id) != JobState.RUNNING:
            return self._paused(job)
        if self._unreached:
            note = UNREACHED.format(count=self._unreached)
            self.ledger.change(job.id, state=JobState.PAUSED, note=note)
            return self.ledger.receipt(job.id)
        if elsewhere := self._held_elsewhere(job, route):
            self.ledger.change(job.id, state=JobState.PAUSED, note=HELD_ELSEWHERE.format(count=elsewhere))
            return self.ledger.receipt(job.id)
        close = self.ledger.close_open
        # Not met, though the whole queue was searched: a published one was settled after all, an intent
        # whose original is gone was moved, and the rest was taken by somebody else.
        close(job.id, LineState.ACKED, None, LineState.PUBLISHED)
        if route.moves:
            close(job.id, LineState.ACKED, None, LineState.INTENT)
        close(job.id, LineState.SKIPPED, f"{GONE}: not handed out", LineState.PLANNED, LineState.INTENT)
        if route.log and self._source is None:
            advance(self.ledger, self.url, route.source, self.queue, self.url.masked)
        self.ledger.change(job.id, state=JobState.DONE, note="")
        return self.ledger.receipt(job.id)

    def _held_elsewhere(self, job: Job, route: Route) -> int:
        """Messages we meant to send and were not handed, though they are still there."""
        known = route.source.traits
        unmet = {line.digest for line in self.ledger.lines_in(job.id, LineState.PLANNED, LineState.INTENT)}
        if route.log or not unmet:
            return 0
        seen = browse(route.source, self.queue, clock=self._clock) if known.browse else ()
        visible = sum(digest(delivery, known) in unmet for delivery in seen)
        if visible or known.lease_s is None or not known.depth or known.depth_lags:
            return visible
        # Most do not show what is reserved. What we had in hand ourselves is settled or given back by now.
        return min(len(unmet), route.source.depth(self.queue).reserved or 0)

    def _paused(self, job: Job) -> Receipt:
        if self.ledger.state_of(job.id) == JobState.CANCELLED:
            self.ledger.close_open(job.id, LineState.SKIPPED, "cancelled", LineState.PLANNED)
        else:
            self.ledger.change(job.id, state=JobState.PAUSED)
        return self.ledger.receipt(job.id)

    # -- parts

    def _sender(self, job: Job, route: Route) -> Sender:
        def before(queue: str) -> None:
            if route.target.traits.replayable:
                mark_logs(self.ledger, job.id, self.target_url, queue)

        checks = self._checks(route)
        sender = Sender(
            self.ledger, job.id, route, self.spec, checks, self._patch, clock=self._clock, before=before
        )
        sender.progress = lambda count: self.progress(count)
        return sender

    def _checks(self, route: Route) -> Checks:
        return Checks(
            self.spec,
            route.source.traits,
            generations=self.ledger.generations,
            succeeded=self._succeeded,
            validate=self._validate,
        )

    def _watch(self, job: Job, sender: Sender, arrivals: Callable[[], None]) -> Callable[[], bool]:
        """Whether to end: told to, cancelled from elsewhere, or too much fails or comes back dead."""
        looked_s = self._clock.monotonic_s()

        def stopped() -> bool:
            nonlocal looked_s
            now_s = self._clock.monotonic_s()
            if now_s - looked_s >= CHECK_EVERY_S:
                looked_s = now_s
                self.ledger.change(job.id, seen_ms=self._clock.epoch_ms())
                self._stopping |= self.ledger.state_of(job.id) != JobState.RUNNING
                arrivals()
            if not self._stopping and (note := sender.breaker.why()):
                self.ledger.change(job.id, state=JobState.PAUSED, note=note)
                self._stopping = True
            return self._stopping

        return stopped

    def _arrivals(self, route: Route, one: Pass, breaker: Breaker) -> Callable[[], None]:
        """Tells the breaker how many dead letters came since; not where the depth is a guess, a log's
        group, or changed by the redrive itself."""
        known = route.source.traits.depth and not route.source.traits.depth_lags
        if not breaker.ratio or not known or route.log or self.spec.to_queue == self.queue:
            return lambda: None
        came = one.arrivals()
        return lambda: breaker.arrived(came(breaker.sent))

    def _known(self) -> Traits:
        return self._source.traits if self._source is not None else traits(self.url)

    @contextmanager
    def _route(self) -> Iterator[Route]:
        moves = self.target_url == replace(self.url, queue=self.target_url.queue)
        target_traits = traits(self.target_url)
        traits_of = cache(lambda queue: traits(replace(self.target_url, queue=queue)))
        if self.spec.bypass and not target_traits.headers:
            raise Unsupported(
                target_traits.name,
                "carry bq-replay-bypass, so effects would be repeated",
                "redrive without --bypass, or to a broker that carries headers",
            )
        known = self._known()
        if self.spec.rate_per_s and known.lease_s and 2 / self.spec.rate_per_s > known.lease_s:
            raise Unsupported(
                known.name,
                f"wait {1 / self.spec.rate_per_s:.0f} s with one in hand: a lease is {known.lease_s:g} s",
                "redrive at a higher --rate, or take a longer lease (?lease_s=)",
            )
        source: Broker = self._source or connect(self.url, self._clock)
        try:
            log = source.traits.replayable
            target = source if moves else connect(self.target_url, self._clock)
            try:
                yield Route(source, target, self.spec.to_queue, moves and not log, log, traits_of)
            finally:
                if target is not source:
                    target.close()
        finally:
            source.close()


def _target(source: BrokerUrl, to: str) -> tuple[BrokerUrl, str]:
    """(broker, queue) of `--to`: a URL, or a queue of the same broker."""
    if "://" not in to:
        return replace(source, queue=to or source.queue), to
    url = parse(to)
    return url, url.queue
