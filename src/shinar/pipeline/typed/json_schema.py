"""Columns of typed tables from the payload schemas of a `registry.json`. Reads files; validates nothing.

`shinar.schemas` checks messages against the same files and needs a package more; here only types are of use.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from shinar.errors import ConfigError
from shinar.pipeline.typed.types import ARRAYS, MAX_DEPTH, KeyPath, PayloadColumns

_SIMPLE: Final = {"integer": "long", "number": "decimal", "string": "string", "boolean": "boolean"}
#: References followed one after the other before they count as a circle.
_MAX_REFERENCES: Final = 32

#: A schema and the file it stands in, where its relative references start.
_Placed = tuple[Mapping[str, Any], str]


def load_registry(path: str | Path) -> dict[str, PayloadColumns]:
    """Columns per URN; a field it does not name is still inferred."""
    file = Path(path)
    files = _Files(file.parent)
    try:
        entries = json.loads(file.read_text())["schemas"]
        placed = {
            entry["urn"]: (_at(files.document(entry["schema"]), ""), entry["schema"]) for entry in entries
        }
        return {urn: PayloadColumns().with_new(dict(files.kinds((), one))) for urn, one in placed.items()}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        text = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
        raise ConfigError(f"cannot be read: {text}", setting="registry", origin=str(path)) from None


class _Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Any] = {}

    def document(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = json.loads((self._folder / name).read_text())
        return self._read[name]

    def kinds(self, path: KeyPath, placed: _Placed) -> Iterator[tuple[KeyPath, str]]:
        body, file = self._followed(placed)
        for key, part in (body.get("properties") or {}).items():
            if not isinstance(part, dict):
                continue
            here, inner = (*path, key), self._followed((part, file))
            if _type(inner[0]) == "object" and inner[0].get("properties") and len(here) < MAX_DEPTH:
                yield from self.kinds(here, inner)
            elif kind := self._kind(inner):
                yield here, kind

    def _kind(self, placed: _Placed) -> str | None:
        body, file = self._followed(placed)
        named = _type(body)
        if named == "array":
            items = body.get("items")
            inner = _type(self._followed((items, file))[0]) if isinstance(items, dict) else None
            return ARRAYS.get(_SIMPLE.get(inner or "", ""), "json")
        return "json" if named == "object" else _SIMPLE.get(named or "")

    def _followed(self, placed: _Placed) -> _Placed:
        """What a `$ref` leads to. One by an `$id` is not followed: its field is inferred."""
        body, file = placed
        for _ in range(_MAX_REFERENCES):
            reference = body.get("$ref")
            if not isinstance(reference, str):
                return body, file
            other, _, pointer = reference.partition("#")
            if "://" in other or (other and "$id" in self.document(file)) or pointer[:1] not in ("", "/"):
                break
            file = posixpath.normpath(posixpath.join(posixpath.dirname(file), other)) if other else file
            body = _at(self.document(file), pointer)
        return {}, file


def _at(document: Any, pointer: str) -> Mapping[str, Any]:
    for key in pointer.split("/")[1:]:
        name = unquote(key).replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document if isinstance(document, dict) else {}


def _type(body: Mapping[str, Any]) -> str | None:
    named = body.get("type")
    if isinstance(named, list):
        rest = [name for name in named if name != "null"]
        named = rest[0] if len(rest) == 1 else None
    return named if isinstance(named, str) else None
