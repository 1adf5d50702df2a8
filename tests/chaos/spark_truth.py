"""What is put into a queue, known to the last copy, and the tables that must come of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shinar.brokers import Outgoing
from shinar.envelope import build, encode, retry_copy
from shinar.pipeline.lake.store import TableStore, existing_store

QUEUE = "orders"
URNS = ("urn:babel:orders:created", "urn:babel:orders:paid", "urn:babel:orders:shipped")
#: No messages, and many of them equal in every byte; `%d` makes the others differ.
POISON = (b"{", b"[]", b'{"job":null,"data":{}}', b'{"job":"urn:babel:orders:paid","attempts":"%d"}')
#: Only for brokers that carry any bytes.
BINARY_POISON = b"\xff\xfe%d"
#: Produced long before it was published.
LATE_MS = 3 * 86_400_000


@dataclass
class Truth:
    """`first` is in the queue before anything runs; `later` comes while things are being killed."""

    first: list[Outgoing] = field(default_factory=list)
    later: list[Outgoing] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    poison: list[bytes] = field(default_factory=list)
    #: Ids of the second copies.
    again: list[str] = field(default_factory=list)
    late: int = 0


def plant(count: int, seed: int, *, binary: bool = True, delay: bool = True) -> Truth:
    """`count` messages, and on top of them 2 % duplicates, 2 % poison; 2 % are late in some way."""
    dice = random.Random(seed)
    truth = Truth()
    for number in range(count):
        message = build(URNS[number % 3], {"order_id": number, "amount": number / 4}, queue=QUEUE)
        early = number < count // 2
        delay_s = 0.0
        if not early and dice.random() < 0.04:
            truth.late += 1
            if delay and dice.random() < 0.25:
                delay_s = float(dice.randint(1, 9))
            else:
                born_ms = message.meta.created_at - dice.randint(1, LATE_MS)
                message = msgspec.structs.replace(
                    message, meta=msgspec.structs.replace(message.meta, created_at=born_ms)
                )
        body = encode(message)
        truth.ids.append(message.meta.id)
        (truth.first if early else truth.later).append(Outgoing(body=body, delay_s=delay_s))
        if dice.random() < 0.02:
            # The same bytes, or as a producer sends it that did not hear the confirmation; soon, or late.
            copy = body if dice.random() < 0.5 else retry_copy(body)
            truth.again.append(message.meta.id)
            late = not early or dice.random() < 0.5
            (truth.later if late else truth.first).append(Outgoing(body=copy))
        if dice.random() < 0.02:
            shape = dice.choice((*POISON, BINARY_POISON) if binary else POISON)
            broken = shape % number if b"%d" in shape else shape
            truth.poison.append(broken)
            (truth.first if early else truth.later).append(Outgoing(body=broken))
    dice.shuffle(truth.first)
    dice.shuffle(truth.later)
    return truth


def column(store: TableStore, table: str, name: str) -> list:
    parts = [pq.read_table(path, columns=[name]) for path in store.files(table)]
    return pa.concat_tables(parts)[name].to_pylist() if parts else []


def differences(lake: Path, truth: Truth) -> dict[str, list]:
    """What the tables have too little or too much of, by table; empty when they are the truth."""
    store = existing_store(lake)
    found: dict[str, list] = {}

    def compare(name: str, has: list, wants: list) -> None:
        lost, extra = Counter(wants) - Counter(has), Counter(has) - Counter(wants)
        if lost:
            found[f"{name}: lost {lost.total()}"] = list(lost.items())[:5]
        if extra:
            found[f"{name}: too many {extra.total()}"] = list(extra.items())[:5]

    compare("messages", column(store, "messages", "id"), truth.ids)
    compare("quarantine", column(store, "quarantine", "body"), truth.poison)
    compare("duplicates", column(store, "duplicates", "id"), truth.again)
    typed = [name for name in store.tables() if name.startswith("typed/")]
    compare("typed", [i for name in typed for i in column(store, name, "_id")], truth.ids)
    sums = {n: sum(column(store, "batches", n)) for n in ("received", "messages", "quarantine", "duplicates")}
    planted = len(truth.ids) + len(truth.poison) + len(truth.again)
    if sums["received"] != planted or sums["messages"] != len(truth.ids):
        found["batches"] = [sums, planted]
    return found
