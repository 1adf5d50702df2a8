"""Why a chosen dead letter should not be sent back after all. Asks stores, never a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from shinar.envelope import SCHEMA_VERSION, judge
from shinar.errors import ContractError, MissingExtra
from shinar.redrive.letters.letter import Letter, Nature
from shinar.redrive.letters.repair import repaired
from shinar.redrive.model import Spec
from shinar.settlement.traits import Traits

Validate = Callable[[str, dict[str, Any]], None]

POISON: Final = "poison"
VERSION: Final = "version"
LOOP: Final = "loop"
SUCCEEDED: Final = "succeeded"
SCHEMA: Final = "schema"
NO_TARGET: Final = "no target"
DEDUP: Final = "dedup window"
TOO_LARGE: Final = "too large"
NOT_TEXT: Final = "not text"
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


class Checks:
    """`why(letters)` gives one reason per letter, "" for those that may go."""

    def __init__(
        self,
        spec: Spec,
        source: Traits,
        *,
        generations: Callable[[Iterable[str]], Mapping[str, int]],
        succeeded: Seen | None = None,
        validate: Validate | None = None,
    ) -> None:
        self._spec = spec
        self._source = source
        self._generations = generations
        self._succeeded = succeeded
        self._validate = validate

    def why(self, letters: Sequence[Letter]) -> list[str]:
        letters = [repaired(letter, self._spec.repair) for letter in letters]
        ids = [letter.id for letter in letters if letter.id]
        done = self._succeeded.seen(ids) if self._succeeded is not None and ids else set()
        sent = self._generations(ids)
        return [self._why(letter, letter.id in done, sent.get(letter.id or "", 0)) for letter in letters]

    def _why(self, letter: Letter, done: bool, generation: int) -> str:
        if letter.nature is Nature.POISON and not self._spec.include_poison:
            return f"{POISON}: {letter.verdict.reason or letter.error or 'no envelope'}"
        if letter.nature is Nature.VERSION and not self._spec.include_version:
            return f"{VERSION}: not {SCHEMA_VERSION}"
        if self._spec.loop_limit and generation >= self._spec.loop_limit:
            return f"{LOOP}: died again after redrive {generation}"
        if done:
            return SUCCEEDED
        if not self._spec.to_queue and not letter.target(self._source):
            return NO_TARGET
        return "" if self._spec.patches else self.violation(letter)

    def violation(self, letter: Letter) -> str:
        """ "" or why the payload would be refused by the schema of its URN."""
        if letter.message is None:
            return ""
        return self.refused(letter.message.urn, letter.message.data)

    def refused_copy(self, body: bytes) -> str:
        """The same for a patched body."""
        message = judge(body).message
        return self.refused(message.urn, message.data) if message is not None else ""

    def refused(self, urn: str, data: dict[str, Any]) -> str:
        if self._validate is None or self._spec.include_invalid:
            return ""
        try:
            self._validate(urn, data)
        except ContractError as exc:
            return f"{SCHEMA}: {exc}"
        return ""


def cannot_carry(body: bytes, target: Traits) -> str:
    """ "" or why no message of this body fits the target broker."""
    if target.max_body_bytes is not None and len(body) > target.max_body_bytes:
        return f"{TOO_LARGE}: {len(body)} bytes, {target.name} takes {target.max_body_bytes}"
    if not target.binary:
        try:
            body.decode("utf-8")
        except UnicodeDecodeError:
            return f"{NOT_TEXT}: {target.name} carries text only"
    return ""


def swallowed(last_ms: int | None, target: Traits, now_ms: int) -> str:
    """ "" or why the target would confirm the copy and throw it away: it saw the same id at `last_ms`."""
    if target.dedup_window_s is None or last_ms is None:
        return ""
    left_s = (last_ms - now_ms) / 1000 + target.dedup_window_s
    if left_s <= 0:
        return ""
    return f"{DEDUP}: wait {left_s:.0f} s"
