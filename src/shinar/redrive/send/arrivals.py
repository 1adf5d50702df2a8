"""After a crash: how many copies reached their target? A log can tell for sure, a queue that can be
browsed can say "at least so many", and others say nothing. Copies are counted, never only found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shinar.brokers import Broker, registry
from shinar.brokers.url import BrokerUrl
from shinar.errors import BrokerError, QueueMissing
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import Line, LineState
from shinar.redrive.letters.letter import Name, digest_of, name_of
from shinar.redrive.letters.read import browse
from shinar.redrive.model import endpoint

#: queue -> partition -> the offset its next record would have got.
Marks = dict[str, dict[str, int]]


class Arrivals(NamedTuple):
    arrived: list[Line]
    #: Surely not there.
    absent: list[Line]


class Copies(NamedTuple):
    """Copies by digest, in one queue of the target."""

    found: Mapping[str, int]
    #: Confirmed lines of this job, and of all jobs.
    ours: Mapping[str, int]
    everybodys: Mapping[str, int]
    #: Everything written since this job's first copy was counted.
    complete: bool


def count_arrivals(intents: Sequence[Line], copies: Copies) -> Arrivals:
    """Which of these arrived. What can be neither proved nor ruled out stays an intent, and is sent again as
    `maybe twice`. So does a copy without an id of its own (poison, a version we do not speak): it may be
    anybody's, and one that is found does not prove that ours arrived."""
    arrived: list[Line] = []
    absent: list[Line] = []
    taken: Counter[str] = Counter()
    for line in intents:
        found = copies.found.get(line.copy, 0) - taken[line.copy]
        if found - copies.ours.get(line.copy, 0) <= 0:
            absent += [line] if copies.complete else []
        elif found - copies.everybodys.get(line.copy, 0) > 0 and (line.id or line.new_id):
            taken[line.copy] += 1
            arrived.append(line)
    return Arrivals(arrived, absent)


def mark_logs(ledger: Ledger, job_id: str, target: BrokerUrl, queue: str) -> None:
    """Note where the target's log ends before the first copy goes there."""
    marks: Marks = msgspec.json.decode(ledger.job(job_id).marks or b"{}", type=Marks)
    if queue in marks:
        return
    try:
        ends = {
            str(number): end for number, (_, end) in registry.replay(target).offsets(target, queue).items()
        }
    except QueueMissing:
        ends = {}
    ledger.remember_marks(job_id, msgspec.json.encode(marks | {queue: ends}).decode())


def settle_doubts(ledger: Ledger, job_id: str, broker: Broker, target: BrokerUrl) -> None:
    """Intents of a run that died: arrived ones become published, surely absent ones planned again."""
    by_queue: dict[str, list[Line]] = {}
    for line in ledger.lines_in(job_id, LineState.INTENT):
        by_queue.setdefault(line.target, []).append(line)
    marks: Marks = msgspec.json.decode(ledger.job(job_id).marks or b"{}", type=Marks)
    for queue, lines in by_queue.items():
        digests = {line.copy for line in lines}
        starts = marks.get(queue) if broker.traits.replayable else None
        complete = False
        try:
            if starts is not None:
                complete = _keeps(target, queue, starts)
                bodies = _logged(target, queue, starts)
            else:
                bodies = _browsed(broker, queue)
            found = Counter(name for name in map(digest_of, bodies) if name in digests)
        except QueueMissing:
            found, complete = Counter(), False
        ours = ledger.copies_sent(queue, digests, job_id)
        copies = Copies(found, ours, ledger.copies_sent(queue, digests), complete)
        arrived, absent = count_arrivals(lines, copies)
        ledger.record_published(job_id, arrived)
        ledger.record_unsent(job_id, absent)


def _keeps(target: BrokerUrl, queue: str, starts: Mapping[str, int]) -> bool:
    """Whether the log still has everything from these offsets on."""
    lows = {str(number): low for number, (low, _) in registry.replay(target).offsets(target, queue).items()}
    return all(lows.get(number, start + 1) <= start for number, start in starts.items())


def _browsed(broker: Broker, queue: str) -> Iterator[bytes]:
    if not broker.traits.browse:
        return
    for delivery in browse(broker, queue):
        yield delivery.body


def _logged(target: BrokerUrl, queue: str, starts: Mapping[str, int]) -> Iterator[bytes]:
    log = registry.replay(target)
    for number, (low, end) in log.offsets(target, queue).items():
        start = max(low, starts.get(str(number), low))
        if start < end:
            for batch in log.read_range(target, queue, number, start, end):
                for delivery in batch:
                    yield delivery.body


def advance(ledger: Ledger, source: BrokerUrl, broker: Broker, queue: str) -> None:
    """A log keeps what was redriven; its group's position can still move over a finished beginning."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}

    def look(page: Iterable[Name]) -> None:
        listed = list(page)
        sent = ledger.sent_before(endpoint(source), queue, listed)
        for name in listed:
            number, _, offset = name.position.partition(":")
            ends[int(number)] = max(ends.get(int(number), 0), int(offset) + 1)
            if name not in sent:
                firsts.setdefault(int(number), int(offset))

    page: list[Name] = []
    for delivery in browse(broker, queue):
        page.append(name_of(delivery, broker.traits))
        if len(page) >= 500:
            look(page)
            page = []
    look(page)
    positions = {number: firsts.get(number, end) for number, end in ends.items()}
    if positions:
        try:
            registry.replay(source).commit_group(source, queue, positions)
        except BrokerError:
            return  # a group with live members keeps its own position; the ledger knows all the same
