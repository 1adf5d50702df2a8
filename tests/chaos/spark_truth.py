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


def columns(store: TableStore, table: str, *names: str) -> list[tuple]:
    parts = [pq.read_table(path, columns=list(names)) for path in store.files(table)]
    if not parts:
        return []
    whole = pa.concat_tables(parts)
    return list(zip(*(whole[name].to_pylist() for name in names), strict=True))


def differences(lake: Path, truth: Truth) -> dict[str, list]:
    """What the tables have too little or too much of, by table; empty when they are the truth.

    Only a row that carries a mark may be one too many: a broker without stable positions delivered a message
    again, and nothing proves that it is the same one. Messages and typed rows have ids: they are exact."""
    store = existing_store(lake)
    found: dict[str, list] = {}

    def compare(name: str, has: list[tuple], wants: list) -> int:
        """How many rows are there on top of the planted ones, each of them explained by a mark."""
        rows = Counter(value for value, _ in has)
        marked = Counter(value for value, mark in has if mark)
        lost, extra = Counter(wants) - rows, rows - Counter(wants)
        unexplained = extra - marked
        if lost:
            found[f"{name}: lost {lost.total()}"] = list(lost.items())[:5]
        if unexplained:
            found[f"{name}: too many {unexplained.total()}"] = list(unexplained.items())[:5]
        return extra.total()

    def unmarked(values: list[tuple]) -> list[tuple]:
        return [(value, None) for (value,) in values]

    compare("messages", unmarked(columns(store, "messages", "id")), truth.ids)
    typed = [name for name in store.tables() if name.startswith("typed/")]
    compare("typed", unmarked([row for name in typed for row in columns(store, name, "_id")]), truth.ids)
    extra = compare("quarantine", columns(store, "quarantine", "body", "redelivery"), truth.poison)
    extra += compare("duplicates", columns(store, "duplicates", "id", "redelivery"), truth.again)
    names = ("received", "messages", "quarantine", "duplicates", "possible_redeliveries")
    sums = dict(zip(names, map(sum, zip(*columns(store, "batches", *names), strict=True)), strict=True))
    planted = len(truth.ids) + len(truth.poison) + len(truth.again)
    if sums["received"] != planted + extra or sums["messages"] != len(truth.ids):
        found["batches"] = [sums, planted, extra]
    if sums["possible_redeliveries"] != possible_redeliveries(lake):
        found["possible redeliveries"] = [sums, possible_redeliveries(lake)]
    return found


def possible_redeliveries(lake: Path) -> int:
    """Rows of the tables that carry the mark."""
    store = existing_store(lake)
    marks = [mark for name in ("messages", "quarantine") for (mark,) in columns(store, name, "redelivery")]
    return sum(mark is not None for mark in marks)
