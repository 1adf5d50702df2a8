"""Whether a chosen dead letter goes back, and as what: one decision for dry run, run and resume.

`decide` is pure. `Checks` gathers what it needs to know from stores and the ledger; no broker is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from shinar.clock import SYSTEM, Clock
from shinar.delivery.capacity import body_refusal
from shinar.envelope import SCHEMA_VERSION, judge
from shinar.errors import BodyTooLarge, ContractError, MissingExtra
from shinar.redrive.ledger.history import History
from shinar.redrive.letters.letter import Letter, Name, Nature, copy_of, name_of
from shinar.redrive.letters.repair import repaired
from shinar.redrive.model import ALREADY, Spec
from shinar.settlement.names import dead_letter_queue, family_queue
from shinar.settlement.traits import Traits

Validate = Callable[[str, dict[str, Any]], None]

POISON: Final = "poison"
VERSION: Final = "version"
LOOP: Final = "loop"
SUCCEEDED: Final = "succeeded"
SCHEMA: Final = "schema"
NO_TARGET: Final = "no target"
OUTSIDE: Final = "outside"
DEDUP: Final = "dedup window"
TOO_LARGE: Final = "too large"
NOT_TEXT: Final = "not text"
PATCH: Final = "patch"
#: Ids looked up in a lake at once.
_LAKE_CHUNK: Final = 5_000


class Seen(Protocol):
    """An idempotency store, or a lake: which of these messages were done?"""

    def seen(self, ids: Iterable[str]) -> set[str]: ...


class LakeSeen:
    """Ids of the `messages` table that arrived alive, read with pyarrow alone."""

    def __init__(self, lake: str) -> None:
        try:
            from shinar.pipeline.lake.store import existing_store
        except ModuleNotFoundError as exc:
            raise MissingExtra("a lake", str(exc.name), "spark") from None
        self._files = existing_store(lake).files("messages")

    def seen(self, ids: Iterable[str]) -> set[str]:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        wanted = list(ids)
        found: set[str] = set()
        if not self._files:
            return found
        for start in range(0, len(wanted), _LAKE_CHUNK):
            part = wanted[start : start + _LAKE_CHUNK]
            alive = pc.field("id").isin(part) & pc.field("dl_reason").is_null()
            rows = ds.dataset(self._files, format="parquet").to_table(columns=["id"], filter=alive)
            found.update(rows.column("id").to_pylist())
        return found


class Patches(Protocol):
    def apply(self, letter: Letter, body: bytes, new_id: str = "") -> tuple[bytes, str]:
        """(the copy changed, its new id). ContractError when the change does not fit this message."""


class Destination(msgspec.Struct, frozen=True):
    """Where copies go, as far as a decision needs it."""

    #: "" sends each to the queue it came from.
    queue: str
    #: Source and target are one broker: a copy travels under an id of its own.
    moves: bool
    #: What a queue of the target can carry; it may differ from queue to queue.
    traits_of: Callable[[str], Traits]


class JobRules(msgspec.Struct, frozen=True):
    """What holds for every letter of a job."""

    spec: Spec
    source: Traits
    to: Destination
    validate: Validate | None = None
    patch: Patches | None = None


class Known(msgspec.Struct, frozen=True):
    """What stores and the ledger know of one letter."""

    now_ms: int
    succeeded: bool = False
    #: Redrives before this one that sent the message back.
    generation: int = 0
    #: When a copy under its id was last sent back.
    sent_ms: int | None = None
    #: The redrive that sent this very record back, where the source keeps it (a log).
    sent_by: str = ""
    #: The id of an earlier copy of this line, so that a patched copy stays the same message.
    new_id: str = ""


class Decision(msgspec.Struct, frozen=True):
    #: As it was judged: repaired, if the job repairs it.
    letter: Letter
    target: str
    #: "" when it goes; otherwise why it stays.
    why: str = ""
    body: bytes = b""
    new_id: str = ""
    #: 1 for the first redrive of this message, 2 for the second…
    generation: int = 1


def decide(letter: Letter, known: Known, rules: JobRules) -> Decision:
    """The one rule of who goes back."""
    target = rules.to.queue or letter.target(rules.source)
    stays = _unfit(letter, known, rules.spec) or _misdirected(letter, target, rules)
    if stays:
        return Decision(letter, target, stays, generation=known.generation + 1)
    try:
        body, new_id = copy_of(letter), ""
        if rules.patch is not None:
            body, new_id = rules.patch.apply(letter, body, known.new_id)
    except ContractError as exc:
        return Decision(letter, target, f"{PATCH}: {exc}", generation=known.generation + 1)
    carrier = rules.to.traits_of(target)
    why = _invalid(body, rules) or cannot_carry(body, carrier)
    if not why and not new_id and not rules.to.moves:
        times_ms = [at_ms for at_ms in (letter.created_ms, known.sent_ms) if at_ms is not None]
        why = swallowed(max(times_ms, default=None), carrier, known.now_ms)
    return Decision(letter, target, why, body, new_id, known.generation + 1)


def _unfit(letter: Letter, known: Known, spec: Spec) -> str:
    if known.sent_by:
        return f"{ALREADY}: by redrive {known.sent_by}"
    if letter.nature is Nature.POISON and not spec.include_poison:
        return f"{POISON}: {letter.verdict.reason or letter.error or 'not an envelope'}"
    if letter.nature is Nature.VERSION and not spec.include_version:
        return f"{VERSION}: not {SCHEMA_VERSION}"
    if spec.loop_limit and known.generation >= spec.loop_limit:
        return f"{LOOP}: died again after redrive {known.generation}"
    return SUCCEEDED if known.succeeded else ""


def _misdirected(letter: Letter, target: str, rules: JobRules) -> str:
    """A letter says itself where it came from: believed only for the queue that its dead-letter queue
    belongs to, or whoever can write a dead letter could reach every queue through us."""
    dlq = letter.delivery.queue
    if rules.to.queue:
        return ""
    if not target or target == dlq:
        return NO_TARGET
    own = target == family_queue(dlq, rules.source) or dead_letter_queue(target, rules.source) == dlq
    return "" if own or rules.spec.any_target else f"{OUTSIDE}: {target}"


def _invalid(body: bytes, rules: JobRules) -> str:
    """ "" or why the schema of its URN would refuse the copy."""
    if rules.validate is None or rules.spec.include_invalid:
        return ""
    message = judge(body).message
    if message is None:
        return ""
    try:
        rules.validate(message.urn, message.data)
    except ContractError as exc:
        return f"{SCHEMA}: {exc}"
    return ""


class Checks:
    """Decisions for letters, page by page; remembers ids that go to a queue which drops repeated ones."""

    def __init__(
        self,
        rules: JobRules,
        history: History,
        *,
        source_key: str,
        queue: str,
        job_id: str = "",
        succeeded: Seen | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._rules = rules
        self._history = history
        self._source = (source_key, queue)
        self._job = job_id
        self._succeeded = succeeded
        self._clock = clock
        self._going: dict[str, int] = {}

    def decide(self, letters: Sequence[Letter], new_ids: Sequence[str] = ()) -> list[Decision]:
        """`letters` as they are in the queue: a repair happens here, and nowhere else."""
        names = [name_of(letter.delivery, self._rules.source) for letter in letters]
        letters = [repaired(letter, self._rules.spec.repair) for letter in letters]
        ids = [letter.id for letter in letters if letter.id]
        done = self._succeeded.seen(ids) if self._succeeded is not None and ids else set()
        generations = self._history.generations(ids, besides=self._job)
        sent_by = self._sent_by(names)
        decisions: list[Decision] = []
        for at, letter in enumerate(letters):
            known = Known(
                now_ms=self._clock.epoch_ms(),
                succeeded=letter.id in done,
                generation=generations.get(letter.id or "", 0),
                sent_ms=self._sent_ms(letter),
                sent_by=sent_by.get(names[at], ""),
                new_id=new_ids[at] if new_ids else "",
            )
            decision = decide(letter, known, self._rules)
            if self._repeats_are_dropped(letter) and not decision.why and not decision.new_id:
                self._going[letter.id or ""] = known.now_ms
            decisions.append(decision)
        return decisions

    def _sent_by(self, names: Sequence[Name]) -> dict[Name, str]:
        if not self._rules.source.replayable:
            return {}
        return self._history.sent_before(*self._source, names, besides=self._job)

    def _sent_ms(self, letter: Letter) -> int | None:
        if not self._repeats_are_dropped(letter):
            return None
        sent = self._history.last_sent_ms(letter.id or "")
        going = self._going.get(letter.id or "")
        return max((at_ms for at_ms in (sent, going) if at_ms is not None), default=None)

    def _repeats_are_dropped(self, letter: Letter) -> bool:
        """Whether the target would confirm a second message with this id and throw it away."""
        target = self._rules.to.queue or letter.target(self._rules.source)
        if self._rules.to.moves or not target or not letter.id:
            return False
        return self._rules.to.traits_of(target).dedup_window_s is not None


def cannot_carry(body: bytes, target: Traits) -> str:
    """ "" or why no message of this body fits the target broker."""
    refusal = body_refusal(target, body)
    if refusal is None:
        return ""
    return f"{TOO_LARGE if isinstance(refusal, BodyTooLarge) else NOT_TEXT}: {refusal}"


def swallowed(last_ms: int | None, target: Traits, now_ms: int) -> str:
    """ "" or why the target would confirm the copy and throw it away: it saw the same id at `last_ms`."""
    if target.dedup_window_s is None or last_ms is None:
        return ""
    left_s = (last_ms - now_ms) / 1000 + target.dedup_window_s
    if left_s <= 0:
        return ""
    return f"{DEDUP}: wait {left_s:.0f} s"
