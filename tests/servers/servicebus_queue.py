"""One queue of the Service Bus stand-in: locks, counts, schedules, dead letters, duplicates. Knows no AMQP.

Every method is given the time in epoch ms; `tick` does what time alone brings about.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DEAD_LETTERS = "/$DeadLetterQueue"
ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


@dataclass(slots=True)
class Settings:
    lock_ms: int = 60_000
    max_deliveries: int = 10
    #: 0: no duplicate detection.
    dedup_ms: int = 0
    max_bytes: int = 256 * 1024
    #: 0: as large as a message.
    max_batch_bytes: int = 0


@dataclass(slots=True)
class Stored:
    #: Message sections as they came: what a receiver gets is byte for byte what was sent.
    properties: bytes
    application: bytes
    body: bytes
    message_id: str = ""
    session: str = ""
    annotations: dict[str, Any] = field(default_factory=dict)
    expires_ms: int | None = None
    due_ms: int = 0
    sequence: int = 0
    enqueued_ms: int = 0
    #: Failed deliveries so far: what the wire calls delivery-count.
    count: int = 0
    state: int = ACTIVE
    token: str = ""
    locked_until_ms: int = 0
    source: str = ""
    #: DeadLetterReason and DeadLetterErrorDescription, once dead.
    dead: dict[str, str] = field(default_factory=dict)


class Queue:
    def __init__(self, name: str, settings: Settings, graveyard: Queue | None) -> None:
        self.name = name
        self.settings = settings
        #: None for a dead-letter queue itself: from there nothing moves on.
        self.graveyard = graveyard
        self._sequences = itertools.count(1)
        self._messages: dict[int, Stored] = {}
        self._ready: list[int] = []
        self._scheduled: list[tuple[int, int]] = []
        self._expiring: list[tuple[int, int]] = []
        self._locked: dict[str, Stored] = {}
        self._seen: dict[str, int] = {}

    # -- in

    def put(self, message: Stored, now_ms: int) -> int:
        """Its sequence number; 0 when duplicate detection swallowed it (which the sender is not told)."""
        if self._is_duplicate(message.message_id, now_ms):
            return 0
        if message.due_ms > now_ms:
            message.state = SCHEDULED
            self._number(message)
            heapq.heappush(self._scheduled, (message.due_ms, message.sequence))
        else:
            self._activate(message, now_ms)
        return message.sequence

    def cancel(self, sequence: int) -> bool:
        message = self._messages.get(sequence)
        if message is None or message.state != SCHEDULED:
            return False
        del self._messages[sequence]
        return True

    def _is_duplicate(self, message_id: str, now_ms: int) -> bool:
        if not self.settings.dedup_ms or not message_id:
            return False
        known = self._seen.get(message_id, 0) > now_ms
        if not known:
            self._seen[message_id] = now_ms + self.settings.dedup_ms
        return known

    def _activate(self, message: Stored, now_ms: int) -> None:
        message.state = ACTIVE
        message.enqueued_ms = now_ms
        self._number(message)
        heapq.heappush(self._ready, message.sequence)
        if message.expires_ms is not None:
            heapq.heappush(self._expiring, (message.expires_ms, message.sequence))

    def _number(self, message: Stored) -> None:
        message.sequence = next(self._sequences)
        self._messages[message.sequence] = message

    # -- out

    def take(self, now_ms: int, session: str | None = None, *, forget: bool = False) -> Stored | None:
        """The oldest ready message, locked; `forget` is receive-and-delete."""
        passed: list[int] = []
        found = None
        while self._ready and found is None:
            sequence = heapq.heappop(self._ready)
            message = self._messages.get(sequence)
            if message is None or message.state != ACTIVE or message.token:
                continue
            if session is not None and message.session != session:
                passed.append(sequence)
                continue
            found = message
        for sequence in passed:
            heapq.heappush(self._ready, sequence)
        if found is not None:
            self._lock(found, now_ms)
            if forget:
                self.complete(found.token, now_ms)
        return found

    def take_deferred(self, sequence: int, now_ms: int) -> Stored | None:
        message = self._messages.get(sequence)
        if message is None or message.state != DEFERRED or message.token:
            return None
        self._lock(message, now_ms)
        return message

    def waiting_sessions(self) -> Iterator[str]:
        for message in self._messages.values():
            if message.session and message.state == ACTIVE and not message.token:
                yield message.session

    def peek(self, first: int, count: int) -> list[Stored]:
        numbers = sorted(number for number in self._messages if number >= first)
        return [self._messages[number] for number in numbers[:count]]

    def _lock(self, message: Stored, now_ms: int) -> None:
        # 16 ASCII characters: proton reads a delivery tag as text, the SDK makes a UUID of it.
        message.token = secrets.token_hex(8)
        message.locked_until_ms = now_ms + self.settings.lock_ms
        self._locked[message.token] = message

    # -- settling: False (or None) when the lock is lost

    def holds(self, token: str, now_ms: int) -> Stored | None:
        message = self._locked.get(token)
        return message if message is not None and message.locked_until_ms > now_ms else None

    def complete(self, token: str, now_ms: int) -> bool:
        message = self._unlock(token, now_ms)
        if message is not None:
            del self._messages[message.sequence]
        return message is not None

    def abandon(self, token: str, now_ms: int, *, counted: bool = True) -> bool:
        message = self._unlock(token, now_ms)
        if message is not None:
            self._put_back(message, now_ms, counted=counted)
        return message is not None

    def defer(self, token: str, now_ms: int) -> bool:
        message = self._unlock(token, now_ms)
        if message is not None:
            message.state = DEFERRED
        return message is not None

    def dead_letter(self, token: str, now_ms: int, reason: str, description: str) -> bool:
        message = self._unlock(token, now_ms)
        if message is not None:
            self._bury(message, now_ms, reason, description)
        return message is not None

    def renew(self, token: str, now_ms: int) -> int | None:
        message = self.holds(token, now_ms)
        if message is None:
            return None
        message.locked_until_ms = now_ms + self.settings.lock_ms
        return message.locked_until_ms

    def renew_session(self, session: str, now_ms: int) -> int:
        for message in self._locked.values():
            if message.session == session:
                message.locked_until_ms = now_ms + self.settings.lock_ms
        return now_ms + self.settings.lock_ms

    def _unlock(self, token: str, now_ms: int) -> Stored | None:
        message = self.holds(token, now_ms)
        if message is not None:
            del self._locked[token]
            message.token = ""
        return message

    def _put_back(self, message: Stored, now_ms: int, *, counted: bool) -> None:
        message.count += counted
        if message.count >= self.settings.max_deliveries and self.graveyard is not None:
            text = f"Message could not be consumed after {message.count} delivery attempts."
            self._bury(message, now_ms, "MaxDeliveryCountExceeded", text)
        elif message.state == ACTIVE:
            heapq.heappush(self._ready, message.sequence)

    def _bury(self, message: Stored, now_ms: int, reason: str, description: str) -> None:
        del self._messages[message.sequence]
        if self.graveyard is None:
            # Dead already: it stays where it is, as in the service.
            self._activate(message, now_ms)
            return
        message.dead = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        message.source = self.name
        message.expires_ms = None
        self.graveyard._activate(message, now_ms)

    # -- time

    def tick(self, now_ms: int) -> None:
        while self._scheduled and self._scheduled[0][0] <= now_ms:
            _, sequence = heapq.heappop(self._scheduled)
            message = self._messages.pop(sequence, None)
            if message is not None:
                # Appended as if sent now, with a new number, as in the service.
                self._activate(message, now_ms)
        for token, message in list(self._locked.items()):
            if message.locked_until_ms <= now_ms:
                del self._locked[token]
                message.token = ""
                self._put_back(message, now_ms, counted=True)
        while self._expiring and self._expiring[0][0] <= now_ms:
            at_ms, sequence = heapq.heappop(self._expiring)
            message = self._messages.get(sequence)
            if message is not None and message.token:
                # Locked: whoever has it may still finish.
                heapq.heappush(self._expiring, (max(at_ms, message.locked_until_ms) + 1, sequence))
            elif message is not None:
                self._bury(
                    message, now_ms, "TTLExpiredException", "The message expired and was dead lettered."
                )
