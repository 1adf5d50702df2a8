"""After a crash: which copies reached their target? A log can tell for sure, a queue that can be
browsed can say yes, and others say nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from shinar.brokers import Broker, parse, registry
from shinar.brokers.url import BrokerUrl
from shinar.errors import BrokerError, QueueMissing
from shinar.redrive.ledger.ledger import Ledger, Line, LineState
from shinar.redrive.letters.letter import DIGEST_CHARS
from shinar.redrive.letters.read import browse

#: queue -> partition -> the offset its next record would have got.
Marks = dict[str, dict[str, int]]


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
    ledger.change(job_id, marks=msgspec.json.encode(marks | {queue: ends}).decode())


def settle_doubts(ledger: Ledger, job_id: str, broker: Broker, target: BrokerUrl) -> None:
    """Intents of a run that died: found ones become published, surely absent ones planned again."""
    by_queue: dict[str, list[Line]] = {}
    for line in ledger.lines_in(job_id, LineState.INTENT):
        by_queue.setdefault(line.target, []).append(line)
    marks: Marks = msgspec.json.decode(ledger.job(job_id).marks or b"{}", type=Marks)
    for queue, lines in by_queue.items():
        sure = broker.traits.replayable and queue in marks
        try:
            bodies = _logged(target, queue, marks[queue]) if sure else _browsed(broker, queue)
            found = _found(bodies, {line.copy for line in lines})
        except QueueMissing:
            found, sure = set(), False
        here = [line for line in lines if line.copy in found]
        ledger.mark(job_id, [msgspec.structs.replace(line, state=LineState.PUBLISHED) for line in here])
        if sure:
            absent = [line for line in lines if line.copy not in found]
            ledger.mark(job_id, [msgspec.structs.replace(line, state=LineState.PLANNED) for line in absent])


def _found(bodies: Iterable[bytes], wanted: set[str]) -> set[str]:
    found: set[str] = set()
    for body in bodies:
        digest = sha256(body).hexdigest()[:DIGEST_CHARS]
        if digest in wanted:
            found.add(digest)
            if len(found) == len(wanted):
                break
    return found


def _browsed(broker: Broker, queue: str) -> Iterator[bytes]:
    if not broker.traits.browse:
        return
    for delivery in browse(broker, queue):
        yield delivery.body


def _logged(target: BrokerUrl, queue: str, starts: dict[str, int]) -> Iterator[bytes]:
    log = registry.replay(target)
    for number, (low, end) in log.offsets(target, queue).items():
        start = max(low, starts.get(str(number), low))
        if start < end:
            for batch in log.read_range(target, queue, number, start, end):
                for delivery in batch:
                    yield delivery.body


def advance(ledger: Ledger, source: BrokerUrl, broker: Broker, queue: str, shown: str) -> None:
    """A log keeps what was redriven; its group's position can still move over a finished beginning."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    page: list[tuple[str, int, int]] = []

    def look() -> None:
        sent = ledger.sent_before(shown, queue, [digest for digest, _, _ in page])
        for digest, number, offset in page:
            ends[number] = max(ends.get(number, 0), offset + 1)
            if digest not in sent:
                firsts.setdefault(number, offset)
        page.clear()

    for delivery in browse(broker, queue):
        number, _, offset = delivery.position.partition(":")
        page.append((sha256(delivery.body).hexdigest()[:DIGEST_CHARS], int(number), int(offset)))
        if len(page) >= 500:
            look()
    look()
    positions = {number: firsts.get(number, end) for number, end in ends.items()}
    if positions:
        try:
            registry.replay(source).commit_group(source, queue, positions)
        except BrokerError:
            return  # a group with live members keeps its own position; the ledger knows all the same


def masked(text: str) -> str:
    return parse(text).masked
