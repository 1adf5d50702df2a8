"""The files of a `registry.json`: which schema is listed for which URN, and the documents themselves.

The one reader of them. A path stays inside the registry's folder, and nothing is fetched over the network.
Reads JSON only; what a schema means is for others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from shinar.errors import ConfigError


class ListedSchema(msgspec.Struct, frozen=True):
    """One row of a registry. `origin` says where it is written, for errors."""

    urn: str
    path: str
    owner: str
    origin: str


def listed_schemas(registry: Path) -> list[ListedSchema]:
    rows = read_document(registry, "registry").get("schemas")
    if not isinstance(rows, list):
        raise ConfigError('needs a list under "schemas"', setting="registry", origin=str(registry))
    return [_listed(row, f"{registry}#/schemas/{index}") for index, row in enumerate(rows)]


def _listed(row: object, origin: str) -> ListedSchema:
    if not isinstance(row, dict):
        raise ConfigError("an entry is a JSON object", setting="registry", origin=origin)
    for name in ("urn", "schema"):
        value = row.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f'needs a text under "{name}"', setting="registry", origin=origin)
    owner = row.get("owner", "")
    return ListedSchema(row["urn"], row["schema"], owner if isinstance(owner, str) else "", origin)


class SchemaFiles:
    """The schema documents of one folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._documents: dict[str, dict[str, Any]] = {}

    def document(self, path: str, origin: str = "") -> dict[str, Any]:
        if path not in self._documents:
            target = (self.folder / path).resolve()
            if Path(path).is_absolute() or not target.is_relative_to(self.folder.resolve()):
                raise ConfigError(f"{path!r} leaves the registry's folder", setting="schema", origin=origin)
            self._documents[path] = read_document(target, "schema")
        return self._documents[path]


def read_document(file: Path, what: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(file.read_bytes())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", setting=what, origin=str(file)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not JSON: {exc}", setting=what, origin=str(file)) from None
    if not isinstance(document, dict):
        raise ConfigError("is not a JSON object", setting=what, origin=str(file))
    return document
