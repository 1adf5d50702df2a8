"""The rule of idempotent handling (contract rules, 9), and what it needs of a store. No I/O of its own.

The guard is no lock: two first deliveries at the same moment may both run. An effect that must
happen once even then belongs into `SqlStore.once`, in one transaction with its mark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, runtime_checkable

from shinar.errors import BrokerError, StoreError, UsageError

log: Final = logging.getLogger("shinar.idempotency")

#: How long a mark is kept unless the user says otherwise: longer than any sane redelivery or redrive.
TTL_S: Final = 7 * 24 * 3600.0


@runtime_checkable
class Store(Protocol):
    """What was done, by message id. Batch first; safe to call from several threads."""

    def seen(self, ids: Iterable[str]) -> set[str]:
        """Those of `ids` that are marked and not expired."""

    def remember(self, ids: Iterable[str]) -> None:
        """Mark; a mark that is there is renewed."""

    def forget(self, ids: Iterable[str]) -> None:
        """Unmark; an id without a mark is no error."""

    def close(self) -> None: ...


def each(ids: Iterable[str]) -> list[str]:
    """The ids, each once. A single text is a mistake: its characters would be taken for ids."""
    if isinstance(ids, str | bytes):
        raise UsageError(f"give the ids as a list: [{ids!r}]")
    return list(dict.fromkeys(ids))


def usable_id(value: object) -> str | None:
    """`meta.id` as a key, verbatim; None when it cannot be one, and the handler then runs every time."""
    return value if isinstance(value, str) and value else None


def guard(store: Store, message_id: object, handler: Callable[[], object]) -> bool:
    """Run the handler unless its message is marked; mark it once the handler returned.

    True when it ran. What the handler raises passes through and leaves no mark. A store that cannot
    be asked raises: to run unasked could repeat the effect. A store that cannot take the mark is
    logged only: the effect has happened, and raising would make the worker repeat it.
    """
    key = usable_id(message_id)
    if key is None:
        handler()
        return True
    if store.seen((key,)):
        return False
    handler()
    try:
        store.remember((key,))
    except (BrokerError, StoreError) as exc:
        log.warning("message %s was handled but could not be marked: %s", key, exc)
    return True
