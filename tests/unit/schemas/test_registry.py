"""registry.json and the files it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shinar.errors import ConfigError, ContractError
from shinar.schemas import Registry

MONEY = {"definitions": {"money": {"type": "object", "required": ["currency"]}}}


def write(folder: Path, files: dict[str, object]) -> Path:
    for name, document in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
    return folder / "registry.json"


def listing(*rows: object) -> dict[str, object]:
    return {"schemas": list(rows), "comment": "other keys are other tools' business"}


def test_a_urn_is_governed_by_its_schema_and_others_are_free(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "registry.json": listing(
                {"urn": "urn:babel:orders:created", "schema": "orders/created.json", "owner": "shop"},
                {"urn": "urn:babel:orders:paid", "schema": "orders/paid.json"},
            ),
            "orders/created.json": {"required": ["id"], "x-gdpr-sensitive": False},
            "orders/paid.json": {
                "properties": {"total": {"$ref": "../common/money.json#/definitions/money"}}
            },
            "common/money.json": MONEY,
        },
    )
    registry = Registry.load(path)
    assert len(registry) == 2
    assert [(entry.urn, entry.owner) for entry in registry] == [
        ("urn:babel:orders:created", "shop"),
        ("urn:babel:orders:paid", ""),
    ]
    assert "urn:babel:orders:paid" in registry
    entry = registry.get("urn:babel:orders:created")
    assert entry is not None
    assert entry.schema["required"] == ["id"]
    assert registry.get("urn:other") is None
    registry.validate("urn:babel:orders:created", {"id": 1})
    registry.validate("urn:other", {"anything": "goes"})
    registry.validate("urn:babel:orders:paid", {"total": {"currency": "EUR"}})
    with pytest.raises(ContractError) as caught:
        registry("urn:babel:orders:paid", {"total": {}})
    assert caught.value.pointer == "/data/total/currency"
    with pytest.raises(ContractError):
        registry.validate("urn:babel:orders:created", {})


def test_schemas_with_an_id_find_each_other(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "registry.json": listing(
                {"urn": "urn:a", "schema": "a.json"}, {"urn": "urn:money", "schema": "money.json"}
            ),
            "a.json": {
                "$id": "https://acme.example/a.json",
                "allOf": [{"$ref": "money.json#/definitions/money"}],
            },
            "money.json": {"$id": "https://acme.example/money.json", **MONEY},
        },
    )
    with pytest.raises(ContractError):
        Registry.load(path).validate("urn:a", {})


def test_files_may_refer_to_each_other_in_a_circle(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "registry.json": listing({"urn": "urn:a", "schema": "a.json"}),
            "a.json": {"properties": {"b": {"$ref": "b.json"}}},
            "b.json": {"properties": {"a": {"$ref": "a.json"}, "n": {"type": "integer"}}},
        },
    )
    with pytest.raises(ContractError) as caught:
        Registry.load(path).validate("urn:a", {"b": {"a": {"b": {"n": "x"}}}})
    assert caught.value.pointer == "/data/b/a/b/n"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, r"registry .*registry.json\): cannot be read: No such file"),
        ({"registry.json": "{"}, "is not JSON"),
        ({"registry.json": "[]"}, "is not a JSON object"),
        ({"registry.json": {"schemas": {}}}, 'must have a list under "schemas"'),
        ({"registry.json": listing("x")}, "#/schemas/0.*an entry must be a JSON object"),
        ({"registry.json": listing({"schema": "a.json"})}, 'must have a text under "urn"'),
        ({"registry.json": listing({"urn": "urn:a", "schema": 7})}, 'must have a text under "schema"'),
        ({"registry.json": listing({"urn": "urn:a", "schema": "no.json"})}, "no.json.*cannot be read"),
        (
            {"registry.json": listing({"urn": "urn:a", "schema": "../x.json"})},
            "is outside of the registry's folder",
        ),
        (
            {"registry.json": listing({"urn": "urn:a", "schema": "/etc/passwd"})},
            "is outside of the registry's folder",
        ),
        (
            {
                "registry.json": listing(
                    {"urn": "urn:a", "schema": "a.json"}, {"urn": "urn:a", "schema": "a.json"}
                ),
                "a.json": {},
            },
            "urn:a is listed twice",
        ),
        (
            {"registry.json": listing({"urn": "urn:a", "schema": "a.json"}), "a.json": {"type": 5}},
            r"a.json\).*/type",
        ),
        (
            {
                "registry.json": listing({"urn": "urn:a", "schema": "a.json"}),
                "a.json": {"$ref": "b.json#/definitions/none"},
                "b.json": {},
            },
            r"\$ref .*a.json\): 'b.json#/definitions/none' does not lead to a schema",
        ),
        (
            {
                "registry.json": listing({"urn": "urn:a", "schema": "a.json"}),
                "a.json": {"$ref": "https://acme.example/far.json"},
            },
            "far.json' does not lead to a schema",
        ),
    ],
)
def test_what_is_wrong_is_found_when_it_is_loaded(
    tmp_path: Path, files: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){text}"):
        Registry.load(write(tmp_path, files))
