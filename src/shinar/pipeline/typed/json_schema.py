"""Columns of typed tables from the payload schemas of a `registry.json`. Validates nothing.

The files are read by `shinar.schemas.files`. Validating messages needs a package more; types do not.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from shinar.errors import ConfigError
from shinar.pipeline.typed.types import ARRAYS, MAX_DEPTH, KeyPath, PayloadColumns
from shinar.schemas.files import SchemaFiles, listed_schemas

_SIMPLE: Final = {"integer": "long", "number": "decimal", "string": "string", "boolean": "boolean"}
#: References followed one after the other before they count as a circle.
_MAX_REFERENCES: Final = 32

#: A schema and the file it stands in, where its relative references start.
_Placed = tuple[Mapping[str, Any], str]


def load_registry(path: str | Path) -> dict[str, PayloadColumns]:
    """Columns per URN; a field it does not name is still inferred."""
    file = Path(path)
    schemas = _Schemas(SchemaFiles(file.parent))
    found: dict[str, PayloadColumns] = {}
    for row in listed_schemas(file):
        try:
            placed = _at(schemas.document(row.path, row.origin), ""), row.path
            found[row.urn] = PayloadColumns().with_new(dict(schemas.kinds((), placed)))
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            raise ConfigError(
                f"a reference in {row.path} leads nowhere: {exc}", setting="registry", origin=str(path)
            ) from None
    return found


class _Schemas:
    def __init__(self, files: SchemaFiles) -> None:
        self.document = files.document

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
