"""`registry.json`: which schema governs the `data` of which URN. A URN without an entry is not validated.

    {"schemas": [{"urn": "urn:babel:orders:created", "schema": "orders/created.json", "owner": "shop"}]}

Paths are relative to the registry's folder and stay inside it; a schema may refer to another file
there (`"$ref": "common.json#/definitions/money"`). Nothing is ever fetched over the network.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from shinar.errors import ConfigError
from shinar.schemas.files import SchemaFiles, listed_schemas
from shinar.schemas.marks import MarkedSchema, compile_marks, has_marks
from shinar.schemas.validate import Validator, check, compile_schema

#: Base address of a registry's folder, for references between its files. Never fetched; a scheme of
#: our own would not do, because relative references are not joined to schemes unknown to urllib.
_BASE: Final = "https://registry.invalid/"


class Entry(msgspec.Struct, frozen=True):
    urn: str
    schema: Mapping[str, Any]
    owner: str = ""
    #: The schema's file as the registry names it; "" when it was given as a value.
    path: str = ""
    #: Where personal data is marked, in the other files it refers to as well; None: not looked for yet.
    marks: MarkedSchema | None = None


class Registry:
    """Hand `registry.validate` to a producer or a worker. Immutable, and safe to use from several threads."""

    def __init__(self, entries: Mapping[str, Entry], validators: Mapping[str, Validator]) -> None:
        self._entries = dict(entries)
        self._validators = dict(validators)

    @classmethod
    def load(cls, path: str | Path) -> Registry:
        file = Path(path)
        listed = listed_schemas(file)
        files = _Files(file.parent)
        entries: dict[str, Entry] = {}
        for row in listed:
            entry = Entry(row.urn, files.schema(row.path, row.origin), row.owner, row.path)
            if entry.urn in entries:
                raise ConfigError(f"{entry.urn} is listed twice", setting="registry", origin=str(file))
            entries[entry.urn] = entry
        known = files.known()
        return cls(
            {urn: files.with_marks(entry) for urn, entry in entries.items()},
            {
                # By reference, so that the schema's own relative references start at its file.
                urn: compile_schema({"$ref": _BASE + entry.path}, str(file.parent / entry.path), known)
                for urn, entry in entries.items()
            },
        )

    @classmethod
    def of(cls, schemas: Mapping[str, Mapping[str, Any]]) -> Registry:
        """From values: URN -> schema."""
        entries = {
            urn: Entry(urn, schema, marks=compile_marks(schema) if has_marks([schema]) else None)
            for urn, schema in schemas.items()
        }
        return cls(entries, {urn: compile_schema(entry.schema, urn) for urn, entry in entries.items()})

    def validate(self, urn: str, data: object) -> None:
        """Raise ContractError, with the JSON pointer of the first violation, unless `data` may be
        sent under this URN."""
        validator = self._validators.get(urn)
        if validator is not None:
            check(validator, data)

    __call__ = validate

    def get(self, urn: str) -> Entry | None:
        return self._entries.get(urn)

    def __contains__(self, urn: object) -> bool:
        return urn in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


class _Files:
    """The schemas of one folder, read once each, together with the files they refer to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._documents = SchemaFiles(folder)
        self._read: dict[str, dict[str, Any]] = {}

    def schema(self, path: str, origin: str) -> dict[str, Any]:
        if path in self._read:
            return self._read[path]
        target = (self._folder / path).resolve()
        document = self._read[path] = self._documents.document(path, origin)
        compile_schema(document, str(target))
        for reference in _references(document):
            file = urlsplit(reference)
            # With an $id of its own a schema's references start there, not at its file.
            if file.path and not file.scheme and "$id" not in document:
                self.schema(
                    posixpath.normpath(posixpath.join(posixpath.dirname(path), file.path)), str(target)
                )
        return document

    def with_marks(self, entry: Entry) -> Entry:
        """The entry with an index of its marks, so that a wrong one is found at load time."""
        documents = {_BASE + path: schema for path, schema in self._read.items()}
        if not has_marks(list(documents.values())):  # `known` has checked that no reference leads elsewhere
            return msgspec.structs.replace(entry, marks=compile_marks({}))
        try:
            marks = MarkedSchema(entry.schema, base=_BASE + entry.path, documents=documents)
        except ConfigError as exc:
            raise ConfigError(str(exc), origin=str(self._folder / entry.path)) from None
        return msgspec.structs.replace(entry, marks=marks)

    def known(self) -> Any:
        """All of them by address, for `referencing`; a broken reference is found now."""
        from referencing import Registry as Resources
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT7

        resources = {_BASE + path: DRAFT7.create_resource(schema) for path, schema in self._read.items()}
        found = Resources().with_resources(resources.items()).crawl()
        for path, schema in self._read.items():
            resolver = found.resolver(schema.get("$id", _BASE + path))
            for reference in _references(schema):
                try:
                    resolver.lookup(reference)
                except Unresolvable:
                    raise ConfigError(
                        f"{reference!r} does not lead to a schema",
                        setting="$ref",
                        origin=str(self._folder / path),
                    ) from None
        return found


def _references(node: Any) -> Iterator[str]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
