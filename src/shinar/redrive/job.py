"""A redrive from beginning to end: plan, write the ledger, send, resume, and the receipt.

receipt = Redrive("redis://localhost/orders.dlq", Spec(where="lang = 'php'")).run()
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from shinar.brokers import Broker, parse, traits
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.delivery.throttle import Pace
from shinar.errors import ConfigError, ShinarError, UsageError
from shinar.redrive.eligibility import Checks, Destination, JobRules, Seen, Validate
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import Job, JobState, Line, LineState, without_claimed
from shinar.redrive.ledger.owner import whoami
from shinar.redrive.letters.letter import Letter, Name
from shinar.redrive.letters.read import UNREACHED, read_letters, reserved_count
from shinar.redrive.letters.repair import require_known
from shinar.redrive.model import Receipt, Spec, endpoint
from shinar.redrive.plan import Plan, Record, make_plan
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.arrivals import advance, mark_logs, settle_doubts
from shinar.redrive.send.breaker import Breaker
from shinar.redrive.send.match import Matcher
from shinar.redrive.send.patch import Function, Patch
from shinar.redrive.send.rate import in_hand, paced, step_of
from shinar.redrive.send.route import (
    RedriveRoute,
    acks_are_certain,
    open_route,
    open_source,
    refuse_impossible,
    target_of,
)
from shinar.redrive.send.scan import HELD_ELSEWHERE, LAPSE_MARGIN_S, QUIET_S, Growth, QueuePass, still_there
from shinar.redrive.send.sender import LetterSender
from shinar.redrive.send.watch import RunWatch, Stop
from shinar.settlement.traits import Traits

#: Rounds through a queue before what was not met counts as gone.
ROUNDS: Final = 3
#: Settlements this shortly before a crash may have been lost with the connection.
DOUBT_MS: Final = 5_000
#: Queues of the target whose traits are remembered; letters can name any number of them.
KNOWN_QUEUES: Final = 256
GONE: Final = "gone"

#: Told the number of messages that came to their end.
Progress = Callable[[int], None]
#: Told the seconds at most before a wait for the leases of a run that died.
Waits = Callable[[float], None]


def _nothing(_: float) -> None:
    return


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
        self.target_url, to_queue = target_of(self.url, to or spec.to_queue)
        if to_queue == self.queue and endpoint(self.target_url) == endpoint(self.url):
            raise ConfigError(
                f"{to_queue} is the dead-letter queue itself; name the queue of a consumer", setting="--to"
            )
        self.spec = msgspec.structs.replace(spec, to_queue=to_queue)
        self.ledger = ledger or Ledger(clock=clock)
        self._succeeded, self._validate, self._clock = succeeded, validate, clock
        self._patch = Patch(self.spec.sets, patch) if self.spec.sets or patch else None
        _require_again(self.spec.patch, patch, "--patch")
        _require_again(self.spec.skip_succeeded, succeeded, "--skip-succeeded")
        require_known(self.spec.repair)
        self._chosen = Chosen(
            where=self.spec.where,
            where_errors=self.spec.where_errors,
            fingerprint=self.spec.fingerprint,
            since_ms=self.spec.since_ms,
            ids=self.spec.ids,
        )
        self._stop = Stop()

    @property
    def traits(self) -> Traits:
        """Of the source."""
        return traits(self.url) if self._source is None else self._source.traits

    @property
    def where_skipped(self) -> int:
        """Dead letters that were left out because `where` raised an error."""
        return self._chosen.skipped

    def opened(self) -> AbstractContextManager[Broker]:
        """The source, to look at it."""
        return open_source(self.url, self._source, self._clock)

    def means(self, letter: Letter) -> bool:
        """Whether the job's choice includes this one."""
        return self._chosen(letter)

    def stop(self) -> None:
        """Finish what is in hand, tidy up, and pause the job."""
        self._stop.ask()

    # -- planning

    def dry_run(self, *, reserve: bool = False) -> Plan:
        """Read only: nothing is sent, settled or written."""
        passed: Counter[Name] = Counter()

        def without_writing(lines: Sequence[Line]) -> list[Line]:
            names = [line.name for line in lines]
            claims = self.ledger.claims(endpoint(self.url), self.queue, names)
            return without_claimed(lines, claims, passed)

        with self._route() as route:
            return self._planned(route, without_writing, reserve=reserve)

    def prepare(self, *, reserve: bool = False) -> tuple[Job, Plan]:
        """A job in the ledger with a line for every chosen message; nothing is sent yet."""
        passed: Counter[Name] = Counter()
        with self._route() as route:
            job = self._new_job(planned=True)
            try:
                plan = self._planned(
                    route, lambda lines: self.ledger.claim(job, lines, passed), job.id, reserve=reserve
                )
            except BaseException:
                self.ledger.cancel(job.id, "not planned to its end")
                raise
            self.ledger.planned(job.id, plan.anchor)
            return self.ledger.job(job.id), plan

    def _planned(self, route: RedriveRoute, record: Record, job_id: str = "", *, reserve: bool) -> Plan:
        known = route.source.traits
        hidden = reserved_count(route.source, self.queue)
        with closing(read_letters(route.source, self.queue, reserve=reserve, clock=self._clock)) as found:
            plan = make_plan(
                found,
                self._chosen,
                self._checks(route, job_id),
                known,
                limit=self.spec.limit,
                record=record,
            )
        plan.reserved = hidden
        return plan

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
            state=JobState.PLANNING if planned else JobState.PLANNED,
            planned=planned,
            source_key=endpoint(self.url),
        )
        self.ledger.create(job)
        return job

    # -- running

    def run(
        self,
        job: Job | None = None,
        *,
        reserve: bool = False,
        progress: Progress = _nothing,
        waits: Waits = _nothing,
    ) -> Receipt:
        """Plan where the broker can be looked at, then send. Without browse (and without `reserve`) the
        chosen ones are found on the way. A broker that fails pauses the job; the receipt says so."""
        refuse_impossible(self.traits, self.target_url, self.spec)
        if job is None:
            can_look = self.traits.browse or reserve
            job = self.prepare(reserve=reserve)[0] if can_look else self._new_job(planned=False)
        return self._go(job, resumed=False, progress=progress, waits=waits)

    def resume(self, job_id: str, *, progress: Progress = _nothing, waits: Waits = _nothing) -> Receipt:
        """Continue where a run ended, however it ended. Failed messages are tried again."""
        job = self.ledger.job(job_id)
        receipt = self.ledger.receipt(job.id)
        unfinished = receipt.failed or receipt.claimed
        if job.state in (JobState.DONE, JobState.CANCELLED) and not unfinished:
            return receipt
        if (job.source_key, job.queue) != (endpoint(self.url), self.queue):
            raise UsageError(f"redrive {job.id} is about {job.source} queue {job.queue}")
        stored = msgspec.json.decode(job.spec, type=Spec)
        _require_again(stored.skip_succeeded, self._succeeded, "--skip-succeeded")
        return self._go(job, resumed=True, progress=progress, waits=waits)

    def _go(self, job: Job, *, resumed: bool, progress: Progress, waits: Waits) -> Receipt:
        crashed = self.ledger.take_over(job)
        try:
            with self._route() as route:
                if resumed:
                    self._recover(job, route, crashed=crashed)
                behind = self._pass(job, route, resumed=resumed, progress=progress, waits=waits)
                return self._finish(job, route, behind)
        except ShinarError as exc:
            self._interrupted(job, str(exc))
            return self.ledger.receipt(job.id)
        except BaseException as exc:
            self._interrupted(job, type(exc).__name__)
            raise

    def _interrupted(self, job: Job, note: str) -> None:
        """The connection may have gone down with the last acknowledgements in it."""
        self.ledger.pause(job.id, note)
        if not acks_are_certain(self.traits, self.url, self.target_url):
            self.ledger.doubt_acks(job.id, DOUBT_MS)

    def _recover(self, job: Job, route: RedriveRoute, *, crashed: bool) -> None:
        self.ledger.retry(job)
        if route.atomic:
            return  # an intent whose original is still there was not sent: the move was all or nothing
        settle_doubts(self.ledger, job.id, route.target, self.target_url)
        if route.log:
            self.ledger.settle_published(job.id)
        elif crashed:
            self.ledger.doubt_acks(job.id, DOUBT_MS)

    def _pass(self, job: Job, route: RedriveRoute, *, resumed: bool, progress: Progress, waits: Waits) -> int:
        """Through the queue; how many the broker did not hand out though they are there."""
        breaker = Breaker(self.spec.max_failure_ratio)
        watch = RunWatch(self.ledger, job.id, self._stop, breaker, self._growth(route, breaker), self._clock)
        matcher = Matcher(
            self.ledger,
            job,
            route.source.traits,
            chosen=None if job.planned else self._chosen,
            limit=self.spec.limit,
        )
        rate, lease_s = self.spec.rate_per_s, route.source.traits.lease_s or 0.0
        step = step_of(rate)
        sender = self._sender(job, route, breaker, progress)
        one = QueuePass(
            route.source,
            self.queue,
            matcher.split,
            paced(sender.send, Pace(rate, step, self._clock), step, watch.stopped),
            stopped=watch.stopped,
            finished=lambda: job.planned and not self.ledger.open_count(job.id),
            waits=waits,
            took=watch.took,
            clock=self._clock,
            batch=in_hand(rate, lease_s),
        )
        if route.log:
            one.follow()
            return 0
        if route.source.traits.release_to == "back":
            self._turn(job, one, lease_s, resumed=resumed)
            return 0
        if resumed and lease_s:
            waits(lease_s + LAPSE_MARGIN_S)
        return one.hold(lease_s + LAPSE_MARGIN_S if resumed else QUIET_S)

    def _turn(self, job: Job, one: QueuePass, lease_s: float, *, resumed: bool) -> None:
        if resumed:
            one.wait_for_lapsed(lease_s)
            if one.stopped():
                return  # nothing was touched yet
            # First the rest of the broken round: it ends where the queue began.
            at = one.find(job.anchor)
            one.turn(one.depth() if at is None else at)
        for _ in range(ROUNDS):
            if (resumed and one.finished()) or one.stopped():
                return
            one.turn(one.depth())
            resumed = True
            if not one.finished():
                one.wait_for_lapsed(lease_s)
                if not one.depth():
                    return

    def _finish(self, job: Job, route: RedriveRoute, behind: int) -> Receipt:
        state = self.ledger.state_of(job.id)
        if state == JobState.CANCELLED:
            self.ledger.cancel(job.id)
        elif self._stop.asked or state != JobState.RUNNING:
            self.ledger.pause(job.id)
        elif behind:
            self.ledger.pause(job.id, UNREACHED.format(count=behind))
        elif elsewhere := self._held_elsewhere(job, route):
            self.ledger.pause(job.id, HELD_ELSEWHERE.format(count=elsewhere))
        else:
            self._searched(job, route)
        return self.ledger.receipt(job.id)

    def _searched(self, job: Job, route: RedriveRoute) -> None:
        """The whole queue was searched, and some were not met: a published one was settled after all, an
        intent whose original is gone was moved, and the rest was taken by somebody else."""
        self.ledger.settle_published(job.id)
        if route.moves:
            self.ledger.settle_intents(job.id)
        self.ledger.give_up(job.id, f"{GONE}: not handed out")
        if route.log and self._source is None:
            advance(self.ledger, self.url, route.source, self.queue)
        self.ledger.finish(job.id)

    def _held_elsewhere(self, job: Job, route: RedriveRoute) -> int:
        """Messages we meant to send and were not handed, though they are still there."""
        lines = self.ledger.lines_in(job.id, LineState.PLANNED, LineState.INTENT)
        unmet = Counter(line.name for line in lines)
        return 0 if route.log or not unmet else still_there(route.source, self.queue, unmet, self._clock)

    # -- parts

    def _sender(self, job: Job, route: RedriveRoute, breaker: Breaker, progress: Progress) -> LetterSender:
        def before(queue: str) -> None:
            if route.target.traits.replayable:
                mark_logs(self.ledger, job.id, self.target_url, queue)

        return LetterSender(
            self.ledger,
            job.id,
            route,
            self._checks(route, job.id),
            breaker=breaker,
            bypass=self.spec.bypass,
            before=before,
            progress=progress,
        )

    def _checks(self, route: RedriveRoute, job_id: str) -> Checks:
        @lru_cache(maxsize=KNOWN_QUEUES)
        def traits_of(queue: str) -> Traits:
            return traits(replace(self.target_url, queue=queue))

        to = Destination(self.spec.to_queue, route.moves, traits_of)
        return Checks(
            JobRules(self.spec, route.source.traits, to, self._validate, self._patch),
            self.ledger,
            source_key=endpoint(self.url),
            queue=self.queue,
            job_id=job_id,
            succeeded=self._succeeded,
            clock=self._clock,
        )

    def _growth(self, route: RedriveRoute, breaker: Breaker) -> Growth | None:
        """None where the depth is a guess, or a log's group."""
        known = route.source.traits
        if not breaker.ratio or not known.depth or known.depth_lags or route.log:
            return None
        return Growth(route.source, self.queue)

    @contextmanager
    def _route(self) -> Iterator[RedriveRoute]:
        refuse_impossible(self.traits, self.target_url, self.spec)
        with self.opened() as source, open_route(source, self.url, self.target_url, self._clock) as route:
            yield route


def _require_again(stored: str, given: object, setting: str) -> None:
    """What cannot be kept in the ledger must come with every run."""
    if stored and given is None:
        raise ConfigError(f"this redrive was started with {setting} {stored}; give it again", setting=setting)
