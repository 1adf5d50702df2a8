"""No payload stops a batch: whatever JSON object a message carries, it is in `messages` with its exact text,
and its typed row is right value by value, or rejected with a reason."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shinar.envelope import Kind, judge
from shinar.pipeline.batch import write_tables
from shinar.pipeline.batch.journal import typed_path
from shinar.pipeline.pipeline import Pipeline
from shinar.pipeline.typed.columns import PayloadBlock, PayloadReader, Rejection, isolated, merge_seen
from shinar.pipeline.typed.types import MAX_COLUMNS, PayloadColumns, as_text, decide_all, decode
from unit.pipeline.lakes import envelope, spark, table

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

URN = "urn:babel:orders:created"


def body(number: int, data: str, urn: str = URN) -> bytes:
    """An envelope around exactly this payload text."""
    return envelope(number, urn, {"PAYLOAD": 0}).replace(b'{"PAYLOAD":0}', data.encode())


def process(lake: Path, bodies: list[bytes]) -> Pipeline:
    job = Pipeline(spark(), lake=str(lake), job="job")
    raw = spark().createDataFrame(pa.table({"body": pa.array(bodies, pa.binary())})).coalesce(1)
    done = job.process(raw)
    assert done.received == len(bodies)
    assert done.balanced
    return job


def exact(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


@pytest.fixture(autouse=True)
def deep_enough() -> Iterator[None]:
    """For the comparisons of this process; the tasks of a batch run in others."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(usual)


def stored_columns(job: Pipeline, name: str) -> PayloadColumns:
    path = typed_path(job.store, f"typed/{name}")
    return msgspec.json.decode(path.read_bytes(), type=PayloadColumns)


def check(job: Pipeline, planted: dict[str, str], name: str = "orders_created") -> None:
    """Every planted payload is in `messages` as it was sent, and once in its typed table or the rejects."""
    assert {row["id"]: row["data"] for row in table(job.store, "messages", "id", "data")} == planted
    typed = {row["_id"]: row for row in table(job.store, f"typed/{name}")}
    rejected = {row["id"]: row for row in table(job.store, "typed_rejects")}
    assert sorted([*typed, *rejected]) == sorted(planted)
    assert all(row["reason"] and row["table"] == f"typed/{name}" for row in rejected.values())
    columns = stored_columns(job, name).columns
    assert len({column.name.lower() for column in columns}) == len(columns)
    for identity, row in typed.items():
        sent = json.loads(planted[identity], parse_float=exact)
        extra = json.loads(row["_extra"], parse_float=exact) if row["_extra"] else {}
        left = dict(leaves(sent, {column.path for column in columns}, ()))
        for column in columns:
            assert same(row[column.name], left.pop(column.path, None), column.kind), (column, row, sent)
        for path, value in left.items():
            pointer = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)
            assert pointer in extra or empty(value), (pointer, sent)


def leaves(value: dict[str, Any], columns: set[tuple[str, ...]], path: tuple[str, ...]) -> Any:
    """Path -> value of every column, and of what has none, as high up as it starts."""
    for key, inner in value.items():
        here = (*path, key)
        below = any(column[: len(here)] == here and column != here for column in columns)
        if isinstance(inner, dict) and below and here not in columns:
            yield from leaves(inner, columns, here)
        else:
            yield here, inner


def same(stored: Any, sent: Any, kind: str) -> bool:
    if sent is None or stored is None:
        return stored is None and (sent is None or (sent == [] and kind not in ("json",)))
    if kind == "json":
        return json.loads(stored, parse_float=exact) == sent
    if kind == "double":
        return Decimal(repr(stored)) == Decimal(sent)
    if kind.endswith("s") and sent == {}:
        return stored == []
    return stored == sent


def empty(value: Any) -> bool:
    return (
        value in (None, [], {})
        or (isinstance(value, dict) and all(map(empty, value.values())))
        or (
            isinstance(value, list)
            and not any(bool(item) or item in (0, False, "") for item in value if item != [])
        )
    )


HOSTILE = {
    "quote": r'{"say \"hi\"":1,"plain":"x"}',
    "backslash": r'{"App\\Models\\User":{"id":7}}',
    "control characters": r'{"a\u0000b\n":1,"\u001b[2J":"x"}',
    "folding": '{"a b":1,"a_b":2,"A_B":3,"a.b":4,"a_b_0eb5b8":5}',
    "deep arrays": '{"a":' + "[" * 350 + "]" * 350 + "}",
    "deeper arrays": '{"a":' + "[" * 890 + "1" + "]" * 890 + "}",
    "deep objects": '{"k":' * 890 + "1" + "}" * 890,
    "surrogates": r'{"\ud800":1,"s":"\udfff","ok":"\ud834\udd1e"}',
    "huge integers": f'{{"i":{"9" * 308},"n":-{"9" * 40},"l":9223372036854775808}}',
    "odd numbers": '{"a":1e-400,"b":-0.0,"c":1e308,"d":0.1000000000000000055511151231257827}',
    "an exponent beyond all decimals": '{"e":1E-999999999999999999999,"f":[1E-999999999999999999999]}',
    "5,000 columns": json.dumps({f"k{number}": number for number in range(5000)}),
    "a long key": json.dumps({"k" * 100_000: 1}),
    "empty keys": '{"":1,"_":2,"__":3,"_id":4,"_extra":5}',
    "repeated keys": '{"a":1,"a":"x","a":{"b":2}}',
    "nothing": "{}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_payload_stops_nothing(tmp_path: Path, name: str) -> None:
    """In a new table, among rows of a known one, and again on its own."""
    planted: dict[str, str] = {}
    for number in range(2):
        texts = (
            [HOSTILE[name], '{"order_id":1}'] if number == 0 else [HOSTILE[name], '{"order_id":2,"new":"x"}']
        )
        bodies = [body(10 * number + place, text) for place, text in enumerate(texts)]
        planted |= {f"id-{10 * number + place}": text for place, text in enumerate(texts)}
        job = process(tmp_path, bodies)
    typed_at_least_the_plain_ones = {row["_id"] for row in table(job.store, "typed/orders_created", "_id")}
    assert {"id-1", "id-11"} <= typed_at_least_the_plain_ones
    check(job, planted)


def test_hundreds_of_urns_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap on typed tables holds, and what is beyond it is counted, not dropped."""
    monkeypatch.setattr(write_tables, "MAX_TABLES", 20)
    job = process(tmp_path, [body(n, f'{{"n":{n}}}', f"urn:babel:minted:u{n:04}") for n in range(2000)])
    assert len(table(job.store, "messages", "id")) == 2000
    tables = [name for name in job.store.tables() if name.startswith("typed/")]
    rejected = table(job.store, "typed_rejects", "id", "reason", "table")
    assert (len(tables), len(rejected)) == (20, 1980)
    assert all(row["reason"].startswith("table_limit") for row in rejected)
    assert sum(len(table(job.store, name, "_id")) for name in tables) == 20


def test_a_fault_in_shaping_costs_one_typed_row() -> None:
    """Whatever a payload makes our own code or a library raise, only its typed row is missing."""

    def shape(start: int, texts: Sequence[str | None]) -> tuple[int, list[str | None]]:
        if "bad" in texts:
            raise MemoryError("a fault\x1b[2J")
        return start, list(texts)

    found = list(isolated(["a", "b", "bad", "c", None], shape))
    shaped = [result for _, result in found if not isinstance(result, Rejection)]
    assert shaped == [(0, ["a", "b"]), (3, ["c", None])]
    ((number, rejection),) = [one for one in found if isinstance(one[1], Rejection)]
    assert (number, rejection.reason) == (2, r"not_shaped: MemoryError: a fault\x1b[2J")


KEYS = st.one_of(
    st.sampled_from(
        ["a", "b", "A", "a.b", "a__b", "id", "_id", "", 'say "hi"', "App\\User", "a\x00b", "\ud800", "über"]
    ),
    st.text(st.characters(), max_size=6),
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-(10**300), 10**300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 1e-300, 2**63, -(2**63), 10**38, 0.1]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(st.characters(), max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)


def deepened(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


#: Arbitrary objects a batch is written with; SHINAR_HEAVY=1 writes ten times as many.
DRAWN = 1500 if os.environ.get("SHINAR_HEAVY") else 150


def drawn() -> list[dict]:
    """Objects from hypothesis, gathered: a whole batch for each of them would take a minute."""
    found: list[dict] = []

    @settings(
        max_examples=DRAWN, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
    )
    @given(OBJECTS, st.sampled_from([0, 0, 0, 5, 400]))
    def gather(value: dict, levels: int) -> None:
        found.append({**value, "deep": deepened(1, levels)} if levels else value)

    gather()
    return found


@pytest.mark.timeout(1800)
def test_any_json_object_comes_through_value_by_value(tmp_path: Path) -> None:
    """Through the whole of two batches: one learns columns, the other meets known ones."""
    planted: dict[str, str] = {}
    for number in range(2):
        texts = {f"id-{10_000 * number + place}": json.dumps(value) for place, value in enumerate(drawn())}
        bodies = [body(int(identity[3:]), text) for identity, text in texts.items()]
        assert all(judge(one).kind is Kind.ACCEPTED for one in bodies)
        job = process(tmp_path, bodies)
        planted |= texts
    assert len(planted) >= DRAWN
    check(job, planted)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(OBJECTS, min_size=1, max_size=8), st.lists(OBJECTS, max_size=8))
def test_any_json_object_is_shaped_or_rejected(first: list[dict], later: list[dict]) -> None:
    """The same without Spark, so that there is time for many."""
    learnt = PayloadBlock([decode(json.dumps(value)) for value in first], None).seen
    columns = PayloadColumns().with_new(decide_all(learnt))
    texts = [json.dumps(value) for value in [*first, *later]]
    block = PayloadReader(columns, final=True).block(texts)
    for row, text in enumerate(texts):
        if row in block.rejections:
            assert block.rejections[row].reason.startswith("type_clash")
            continue
        left = dict(leaves(json.loads(text, parse_float=exact), {c.path for c in columns.columns}, ()))
        for column in columns.columns:
            values = block.arrays.get(column.name)
            stored = None if values is None else values[row].as_py()
            assert same(stored, left.pop(column.path, None), column.kind), (column, text)
        for path, value in left.items():
            pointer = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)
            assert pointer in block.extra.get(row, {}) or empty(value), (pointer, text)
        assert json.loads(as_text(block.extra.get(row, {}))) is not None


def shaped_s(payloads: int) -> float:
    """CPU seconds to learn the columns of payloads with 100 keys of their own each, and to shape them."""
    texts = [json.dumps({f"k{row}_{key}": key for key in range(100)}) for row in range(payloads)]
    started_s = time.process_time()
    seen = merge_seen([PayloadBlock([decode(text) for text in texts], None).seen])
    columns = PayloadColumns().with_new(decide_all(seen))
    block = PayloadReader(columns, final=True).block(texts)
    took_s = time.process_time() - started_s
    assert len(columns.columns) == MAX_COLUMNS
    assert sum(map(len, block.extra.values())) == payloads * 100 - MAX_COLUMNS
    return took_s


def test_own_keys_in_every_payload_cost_linear_time() -> None:
    """Eight times the payloads in about eight times the time; it was sixty-four times."""
    few, many = (min(shaped_s(payloads) for _ in range(3)) for payloads in (250, 2000))
    assert many / few < 24, f"{few:.2f} s, {many:.2f} s"
