"""Payload schemas proposed from traffic: draft-07, in the subset every SDK of the contract validates."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.analysis.fields import fields
from shinar.pipeline.batch.route import own_table

#: With this many messages behind it a proposal is as sure as traffic can make it.
SURE_MESSAGES: Final = 1000
#: A text field with few distinct values over at least this many messages is proposed as an enumeration.
ENUM_MESSAGES: Final = 200
_ENUM_CHOICES: Final = 8


class Proposal(msgspec.Struct, frozen=True):
    urn: str
    schema: dict[str, Any]
    messages: int
    langs: tuple[str, ...]
    #: 0 to 1: how much traffic there was, less what contradicts itself.
    confidence: float
    notes: tuple[str, ...]
    sample_id: str | None


def propose(messages: DataFrame) -> list[Proposal]:
    """One proposal per URN. Collected: there are as many rows as fields, not as messages."""
    counted = fields(messages).groupBy("urn", "pointer", "kind").agg(
        F.sum("seen").alias("seen"),
        F.collect_set("lang").alias("langs"),
        F.array_distinct(F.flatten(F.collect_list("choices"))).alias("choices"),
        F.max(F.col("choices").isNull()).alias("open"),
        F.sum("unsafe_integers").alias("unsafe"),
        F.min("sample_id").alias("sample_id"),
    )  # fmt: skip
    by_urn: dict[str, list[Any]] = defaultdict(list)
    for row in counted.collect():
        by_urn[row["urn"]].append(row)
    return [_proposal(urn, rows) for urn, rows in sorted(by_urn.items())]


def _proposal(urn: str, rows: list[Any]) -> Proposal:
    total = next(row for row in rows if row["pointer"] == "")
    count = int(total["seen"])
    by_pointer: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if row["pointer"]:
            by_pointer[row["pointer"]][row["kind"]] = row
    notes: list[str] = []
    body = _object("", by_pointer, count, count, notes)
    certain = min(1.0, count / SURE_MESSAGES) * (1 - min(0.5, 0.1 * len(notes)))
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": urn, **body}
    return Proposal(
        urn, schema, count, tuple(sorted(total["langs"])), round(certain, 3), tuple(notes), total["sample_id"]
    )


def _object(
    prefix: str, fields_of: dict[str, dict[str, Any]], parents: int, messages: int, notes: list[str]
) -> dict[str, Any]:
    depth = prefix.count("/") + 1
    names = [p for p in fields_of if p.startswith(f"{prefix}/") and p.count("/") == depth]
    properties, required = {}, []
    for pointer in sorted(names):
        key = pointer[len(prefix) + 1 :].replace("~1", "/").replace("~0", "~")
        if key == "*":
            continue
        properties[key] = _value(pointer, fields_of, messages, notes)
        present = sum(int(row["seen"]) for kind, row in fields_of[pointer].items() if kind != "null")
        if present == parents:
            required.append(key)
    made: dict[str, Any] = {"type": "object"}
    if required:
        made["required"] = required
    return made | {"properties": properties}


def _value(
    pointer: str, fields_of: dict[str, dict[str, Any]], messages: int, notes: list[str]
) -> dict[str, Any]:
    kinds = {kind: row for kind, row in fields_of[pointer].items() if kind != "null"}
    names = set(kinds)
    if names == {"integer", "number"}:
        return {"type": "number"}
    if len(names) != 1:
        if names:
            notes.append(f"{pointer}: {', '.join(sorted(names))} were all seen; no type proposed")
        return {}
    kind = names.pop()
    row = kinds[kind]
    if kind == "object":
        return _object(pointer, fields_of, int(row["seen"]), messages, notes)
    if kind == "array":
        items = f"{pointer}/*"
        return {"type": "array"} | (
            {"items": _value(items, fields_of, messages, notes)} if items in fields_of else {}
        )
    if kind == "integer" and row["unsafe"]:
        notes.append(f"{pointer}: {row['unsafe']} integers beyond 2^53-1; text would be safer")
    if kind == "string" and _is_choice(row):
        return {"type": "string", "enum": sorted(row["choices"])}
    return {"type": kind}


def _is_choice(row: Any) -> bool:
    return (
        not row["open"]
        and bool(row["choices"])
        and len(row["choices"]) <= _ENUM_CHOICES
        and row["seen"] >= ENUM_MESSAGES
    )


def write_registry(proposals: list[Proposal], out: Path) -> Path:
    """A `registry.json` with one file per URN. An existing registry is not overwritten."""
    out.mkdir(parents=True, exist_ok=True)
    entries = []
    for proposal in proposals:
        name = f"{own_table(proposal.urn)}.json"
        (out / name).write_text(json.dumps(proposal.schema, indent=2, ensure_ascii=False) + "\n")
        entries.append({"urn": proposal.urn, "schema": name})
    registry = out / "registry.json"
    with open(registry, "x") as file:
        file.write(json.dumps({"schemas": entries}, indent=2) + "\n")
    return registry
