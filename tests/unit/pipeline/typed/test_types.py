"""Values to columns: nothing is rounded, nothing is guessed twice, what does not fit is named."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.errors import ConfigError
from shinar.pipeline.typed.columns import PayloadBlock, PayloadReader
from shinar.pipeline.typed.json_schema import load_registry
from shinar.pipeline.typed.types import (
    MAX_COLUMNS,
    PayloadColumns,
    as_text,
    coerce,
    decide,
    decide_all,
    decode,
)


def learn(*payloads: str) -> PayloadColumns:
    return PayloadColumns().with_new(decide_all(PayloadBlock([decode(text) for text in payloads], None).seen))


def kinds(*payloads: str) -> dict[str, str]:
    return {column.name: column.kind for column in learn(*payloads).columns}


def test_kinds_of_a_first_batch() -> None:
    assert kinds(
        '{"n":1,"f":99.90,"s":"x","b":true,"o":{"a":1,"deep":{"z":"y"}},"l":[1,2],"t":["a"],"m":[{"k":1}],"e":[],'
        '"u":null,"big":123456789012345678901,"tiny":1.5e-30,"mix":[1,"a"],"empty":{}}'
    ) == {
        "n": "long",
        "f": "decimal",
        "s": "string",
        "b": "boolean",
        "o__a": "long",
        "o__deep__z": "string",
        "l": "longs",
        "t": "strings",
        "m": "json",
        "big": "bigint",
        "tiny": "double",
        "mix": "json",
    }


def test_integers_and_fractions_share_a_decimal_column() -> None:
    assert kinds('{"a":1}', '{"a":2.5}') == {"a": "decimal"}


def test_the_majority_of_a_first_batch_decides_and_the_rest_clash() -> None:
    texts = ['{"a":"x"}', '{"a":"y"}', '{"a":1}', '{"a":{"b":1}}']
    columns = learn(*texts)
    assert [(c.name, c.kind) for c in columns.columns] == [("a", "string")]
    block = PayloadBlock([decode(text) for text in texts], columns)
    assert {row: found.pointer for row, found in block.rejections.items()} == {2: "/data/a", 3: "/data/a"}
    assert "string in the table, long here" in block.rejections[2].reason


def test_an_object_that_turns_into_text_clashes() -> None:
    columns = learn('{"c":{"id":1}}', '{"c":{"id":2}}')
    block = PayloadBlock([decode('{"c":"x"}'), decode('{"c":null}'), decode("{}")], columns)
    assert {row: found.pointer for row, found in block.rejections.items()} == {0: "/data/c"}


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("long", "9223372036854775807", 9223372036854775807),
        ("long", "9223372036854775808", None),
        ("long", "1.0", 1),
        ("long", "1.5", None),
        ("long", "true", None),
        ("long", '"1"', None),
        ("bigint", "9223372036854775808", Decimal(9223372036854775808)),
        ("bigint", "1" + "0" * 38, None),
        ("decimal", "99.90", Decimal("99.90")),
        ("decimal", "9007199254740993", Decimal(9007199254740993)),
        ("decimal", "1e-19", None),
        ("decimal", "12345678901234567890123", None),
        ("double", "0.1", 0.1),
        ("double", "0.1000000000000000055511151231257827", None),
        ("double", "9007199254740993", None),
        ("double", "9007199254740992", 9007199254740992.0),
        ("boolean", "true", True),
        ("boolean", "1", None),
        ("string", "1", None),
        ("json", "[1, 2.50]", "[1,2.50]"),
        ("json", "1", None),
        ("longs", "[1,null,2]", [1, None, 2]),
        ("longs", '[1,"a"]', None),
        ("longs", "5", None),
    ],
)
def test_nothing_is_rounded(kind: str, text: str, stored: object) -> None:
    assert coerce(decode(f'{{"v":{text}}}')["v"], kind) == stored


@given(st.integers(-(2**70), 2**70))
def test_integers_survive_or_clash(value: int) -> None:
    columns = learn('{"v":1}')
    block = PayloadBlock([decode(json.dumps({"v": value}))], columns)
    assert (block.arrays["v"].to_pylist() == [value]) != (0 in block.rejections)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**15), max_value=10**15))
def test_fractions_survive(value: Decimal) -> None:
    columns = learn('{"v":1.5}')
    text = format(value, "f")
    block = PayloadBlock([decode(f'{{"v":{text}}}')], columns)
    assert block.arrays["v"].to_pylist() == [value]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([1.0, -0.0, 1.5, 0.1, 1e30, 12345.678]),
    st.sampled_from(["", "x", "1.5", "größer", "\ud800"]),
)
PAYLOADS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "o", "ü x"]),
    st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from("ab"), SCALARS)),
)


@given(st.lists(PAYLOADS, min_size=1, max_size=4), st.lists(PAYLOADS, max_size=4))
def test_the_quick_way_gives_what_the_careful_one_gives(first: list[dict], later: list[dict]) -> None:
    columns = learn(*map(json.dumps, first))
    for texts in ([*map(json.dumps, first)], [*map(json.dumps, later)], [*map(json.dumps, first + later)]):
        quick = PayloadReader(columns).block(texts)
        careful = PayloadBlock([decode(text) for text in texts], columns)
        assert (quick.rejections, quick.seen, quick.extra) == (
            careful.rejections,
            careful.seen,
            careful.extra,
        )
        for column in columns.columns:
            nothing = pa.nulls(len(texts), pa.string())
            found, expected = (block.arrays.get(column.name, nothing) for block in (quick, careful))
            assert found.to_pylist() == expected.to_pylist()


def test_new_fields_are_seen_and_old_ones_kept() -> None:
    columns = learn('{"a":1}')
    block = PayloadBlock([decode('{"a":1,"b":{"c":"x"}}')], columns)
    grown = columns.with_new(decide_all(block.seen))
    assert [c.name for c in grown.columns] == ["a", "b__c"]
    assert columns.columns[0] is grown.columns[0]


def test_names_that_would_collide() -> None:
    names = [c.name for c in learn('{"a__b":1,"a":{"b":2},"A__B":3,"_id":4,"über":5,"x y":6,"":7}').columns]
    assert len({name.lower() for name in names}) == len(names) == 7
    assert all(name.isascii() and name.replace("_", "a").isalnum() for name in names)
    assert "_id" not in names


def test_a_payload_with_ids_as_keys_does_not_grow_for_ever() -> None:
    wide = {f"k{number}": number for number in range(MAX_COLUMNS + 50)}
    columns = learn(json.dumps(wide))
    assert len(columns.columns) == MAX_COLUMNS
    block = PayloadBlock([wide], columns)
    assert len(block.extra[0]) == 50
    assert not block.seen
    kept = {c.path[0] for c in columns.columns}
    assert {f"/{key}" for key in wide if key not in kept} == set(block.extra[0])


def test_deep_objects_stay_text() -> None:
    payload = '{"a":{"b":{"c":{"d":{"e":1.50}}}}}'
    columns = learn(payload)
    assert [(c.name, c.kind) for c in columns.columns] == [("a__b__c__d", "json")]
    block = PayloadBlock([decode(payload)], columns)
    assert block.arrays["a__b__c__d"].to_pylist() == ['{"e":1.50}']


def test_lone_surrogates_do_not_break_a_batch() -> None:
    columns = learn('{"s":"x"}')
    block = PayloadBlock([decode('{"s":"\\ud800"}'), decode('{"s":"ok"}')], columns)
    assert set(block.rejections) == {0}
    assert as_text(["\ud800"])


def test_decide_is_deterministic_on_a_tie() -> None:
    assert decide({"long": 1, "string": 1}) == decide({"string": 1, "long": 1}) == "string"


def test_columns_from_a_registry(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "order_id": {"type": "integer"},
            "amount": {"type": "number"},
            "note": {"type": ["string", "null"]},
            "customer": {"type": "object", "properties": {"id": {"type": "integer"}}},
            "free": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "lines": {"type": "array", "items": {"type": "object"}},
            "any": {},
        },
    }
    (tmp_path / "order.json").write_text(json.dumps(schema))
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps({"schemas": [{"urn": "urn:x", "schema": "order.json"}]}))
    found = {c.name: c.kind for c in load_registry(registry)["urn:x"].columns}
    assert found == {
        "amount": "decimal",
        "customer__id": "long",
        "free": "json",
        "lines": "json",
        "note": "string",
        "order_id": "long",
        "tags": "strings",
    }
    assert learn('{"a":1}').arrow().field("a").type == pa.int64()


def test_a_broken_registry_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="registry"):
        load_registry(tmp_path / "none.json")


def test_a_registry_follows_references(tmp_path: Path) -> None:
    schema = {
        "definitions": {"money": {"type": "number"}, "own": {"$ref": "#/definitions/own"}},
        "properties": {
            "amount": {"$ref": "#/definitions/money"},
            "customer": {"$ref": "parts/person.json#/$defs/a~1b"},
            "tags": {"type": "array", "items": {"$ref": "parts/person.json#/$defs/name"}},
            "circle": {"$ref": "#/definitions/own"},
            "far": {"$ref": "https://example.com/far.json"},
        },
    }
    person = {
        "$defs": {
            "name": {"type": "string"},
            "a/b": {"type": "object", "properties": {"name": {"$ref": "#/$defs/name"}}},
        }
    }
    (tmp_path / "parts").mkdir()
    (tmp_path / "order.json").write_text(json.dumps(schema))
    (tmp_path / "parts/person.json").write_text(json.dumps(person))
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps({"schemas": [{"urn": "urn:x", "schema": "order.json"}]}))
    found = {c.name: c.kind for c in load_registry(registry)["urn:x"].columns}
    assert found == {"amount": "decimal", "customer__name": "string", "tags": "strings"}
    (tmp_path / "parts/person.json").unlink()
    with pytest.raises(ConfigError, match=r"person\.json.*No such file"):
        load_registry(registry)


def test_a_key_that_is_no_text_goes_to_extra() -> None:
    payloads = [r'{"\ud800":1,"x":2}', r'{"y":{"\udc00":1.50}}']
    columns = learn(*payloads)
    assert [column.name for column in columns.columns] == ["x"]
    block = PayloadReader(columns).block(payloads)
    assert (block.rejections, block.seen) == ({}, {})
    assert {row: as_text(extra) for row, extra in block.extra.items()} == {
        0: r'{"/\ud800":1}',
        1: r'{"/y/\udc00":1.50}',
    }


def test_numbers_beside_half_a_surrogate_stay_numbers() -> None:
    assert as_text([Decimal("1.5"), "\ud800", {"k": [], "l": {}}, True, None]) == (
        r'[1.5,"\ud800",{"k":[],"l":{}},true,null]'
    )
    deep: object = "\ud800"
    for _ in range(900):  # as deep as the contract allows
        deep = [deep]
    assert as_text(deep) == "[" * 900 + r'"\ud800"' + "]" * 900


def test_empty_lists_and_maps_stand_for_each_other() -> None:
    """PHP writes an empty map as []."""
    columns = learn('{"o":{"a":1},"l":[1]}')
    block = PayloadReader(columns).block(
        ['{"o":[],"l":{}}', '{"o":[1],"l":[2]}', '{"o":{"a":3},"l":{"k":1}}']
    )
    assert {row: found.pointer for row, found in block.rejections.items()} == {1: "/data/o", 2: "/data/l"}
    assert block.arrays["o__a"].to_pylist() == [None, None, 3]
    assert block.arrays["l"].to_pylist()[:2] == [[], [2]]
