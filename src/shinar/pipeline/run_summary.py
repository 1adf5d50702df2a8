"""What a run did, added up from the manifests of its batches. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from shinar.pipeline.batch.journal import Manifest


class RunSummary(msgspec.Struct, frozen=True):
    """What a run did. `balanced` is part of it because a run that is not never gets here."""

    batches: int = 0
    received: int = 0
    messages: int = 0
    quarantine: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    possible_redeliveries: int = 0
    #: Rows added per table, typed and handled tables included.
    tables: dict[str, int] = {}
    queues: dict[str, dict[str, int]] = {}
    handler_failures: tuple[str, ...] = ()
    took_s: float = 0.0

    @property
    def balanced(self) -> bool:
        return self.received == self.messages + self.quarantine + self.duplicates


class RunTotals:
    def __init__(self) -> None:
        self.batches = 0
        self.rows: Counter[str] = Counter()
        self.queues: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def add(self, manifest: Manifest) -> None:
        self.batches += 1
        for commit in manifest.commits:
            self.rows[commit.table] += commit.rows
        for balance in manifest.balances:
            counts = msgspec.structs.asdict(balance)
            self.queues.setdefault(counts.pop("queue"), Counter()).update(counts)

    def summary(self, took_s: float) -> RunSummary:
        return RunSummary(
            batches=self.batches,
            received=sum(queue["received"] for queue in self.queues.values()),
            messages=self.rows["messages"],
            quarantine=self.rows["quarantine"],
            duplicates=self.rows["duplicates"],
            dead_letters=self.rows["dead_letters"],
            possible_redeliveries=sum(queue["possible_redeliveries"] for queue in self.queues.values()),
            tables=dict(sorted(self.rows.items())),
            queues={name: dict(counts) for name, counts in sorted(self.queues.items())},
            handler_failures=tuple(self.failures),
            took_s=took_s,
        )
