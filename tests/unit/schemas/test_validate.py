"""Verdicts on payloads: our own vectors, and the suite's where it lies beside the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shinar.errors import ConfigError, ContractError
from shinar.schemas import Registry, conforms

SUITE = Path(__file__).parents[4] / "shared" / "conformance" / "suite" / "manifest.json"

OBJECT = {"type": "object"}


def prop(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"v": schema}}


@pytest.mark.parametrize(
    ("schema", "data", "valid"),
    [
        ({}, {"anything": [1, None]}, True),
        ({"x-gdpr-sensitive": True, "unknown": 7}, {}, True),
        # integer and number
        (prop({"type": "integer"}), {"v": 1}, True),
        (prop({"type": "integer"}), {"v": 1.0}, True),
        (prop({"type": "integer"}), {"v": 1.5}, False),
        (prop({"type": "integer"}), {"v": True}, False),
        (prop({"type": "integer"}), {"v": "1"}, False),
        (prop({"type": "number"}), {"v": 1.5}, True),
        (prop({"type": "number"}), {"v": False}, False),
        (prop({"type": "boolean"}), {"v": 0}, False),
        (prop({"type": "null"}), {"v": None}, True),
        # a list of types, and rules without a type, do their work
        (prop({"type": ["string", "null"]}), {"v": None}, True),
        (prop({"type": ["string", "null"]}), {"v": 1}, False),
        ({"required": ["id"]}, {}, False),
        ({"required": ["id"]}, {"id": None}, True),
        ({"properties": {"v": {"minimum": 3}}}, {"v": 2}, False),
        ({"properties": {"v": {"minLength": 3}}}, {"v": "ab"}, False),
        ({"properties": {"v": {}}, "additionalProperties": False}, {"w": 1}, False),
        ({"additionalProperties": {"type": "integer"}}, {"w": "x"}, False),
        # const and enum keep types apart
        (prop({"const": 1}), {"v": True}, False),
        (prop({"const": True}), {"v": 1}, False),
        (prop({"const": "1"}), {"v": 1}, False),
        (prop({"const": None}), {"v": False}, False),
        (prop({"enum": [0, "a"]}), {"v": False}, False),
        (prop({"enum": [[1]]}), {"v": [True]}, False),
        (prop({"const": {"a": [1]}}), {"v": {"a": [True]}}, False),
        (prop({"const": {"a": 1}}), {"v": {"a": 1}}, True),
        # lengths are code points: not bytes, not UTF-16 units, not what a reader sees
        (prop({"minLength": 2}), {"v": "😀"}, False),
        (prop({"minLength": 2}), {"v": "😀😀"}, True),
        (prop({"minLength": 2}), {"v": "e\u0301"}, True),
        (prop({"minLength": 3}), {"v": "ğü"}, False),
        (prop({"minimum": 1}), {"v": 1}, True),
        (prop({"minimum": 1}), {"v": 0.99}, False),
        (prop({"items": {"type": "string"}}), {"v": ["a", 1]}, False),
        (prop({"items": {"type": "string"}}), {"v": []}, True),
    ],
)
def test_verdicts(schema: dict[str, object], data: object, valid: bool) -> None:
    assert conforms(schema, data) is valid


@pytest.mark.skipif(not SUITE.is_file(), reason="the conformance suite is not beside the project")
@pytest.mark.parametrize("section", ["payload_schema", "payload_schema_unicode"])
def test_the_suites_verdicts(section: str) -> None:
    given = json.loads(SUITE.read_text())[section]
    assert given["cases"]
    for row in given["cases"]:
        assert conforms(given["schema"], row["data"]) is row["valid"], row["name"]


@pytest.mark.parametrize(
    ("schema", "data", "pointer", "text"),
    [
        ({"required": ["id"]}, {}, "/data/id", "is required and missing"),
        (prop({"required": ["a/b~c"]}), {"v": {}}, "/data/v/a~1b~0c", "missing"),
        (prop({"items": {"type": "integer"}}), {"v": [1, 2, "SECRET"]}, "/data/v/2", 'type: "integer"'),
        ({"properties": {}, "additionalProperties": False}, {"x": "SECRET"}, "/data/x", "not a property"),
        (prop({"enum": ["a", "b"]}), {"v": "SECRET"}, "/data/v", r'enum: \["a","b"\]'),
        (prop({"not": {"const": "SECRET"}}), {"v": "SECRET"}, "/data/v", "rule not"),
        ({"not": {}}, {"v": "SECRET"}, "/data", "rule not"),
    ],
)
def test_a_violation_names_the_place_and_not_the_value(
    schema: dict[str, object], data: object, pointer: str, text: str
) -> None:
    with pytest.raises(ContractError, match=text) as caught:
        Registry.of({"urn:a": schema}).validate("urn:a", data)
    assert caught.value.pointer == pointer
    if "const" not in json.dumps(schema):
        assert "SECRET" not in str(caught.value)


def test_nesting_beyond_reason_is_a_violation_not_a_crash() -> None:
    schema = {"type": "object", "properties": {"v": {"$ref": "#"}}}
    data: dict[str, object] = {}
    for _ in range(20_000):
        data = {"v": data}
    with pytest.raises(ContractError, match="nested too deep"):
        Registry.of({"urn:a": schema}).validate("urn:a", data)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ([], "a schema is a JSON object"),
        ({"type": "integr"}, "/type"),
        ({"required": "id"}, "/required"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "payload schemas are draft-07"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        conforms(schema, {})  # type: ignore[arg-type]  # refused at run time


def test_no_reference_is_fetched() -> None:
    registry = Registry.of({"urn:a": {"$ref": "http://127.0.0.1:9/never.json"}})
    with pytest.raises(ConfigError, match=r"\$ref 'http://127.0.0.1:9/never.json' does not lead to a schema"):
        registry.validate("urn:a", {})


def test_a_member_that_must_not_be_there() -> None:
    with pytest.raises(ContractError, match="is not allowed") as caught:
        Registry.of({"urn:a": prop(False)}).validate("urn:a", {"v": "SECRET"})
    assert "SECRET" not in str(caught.value)
