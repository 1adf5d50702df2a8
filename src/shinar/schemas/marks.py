"""Where a schema marks values with `x-gdpr-sensitive`: an index of its subschemas, anchors and references.

Whatever could hide a mark refuses the whole schema: a mark of another type, a mark at a position that is not
a subschema, a reference that does not lead to a subschema of the documents given. Payloads and ciphers are
unknown here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from shinar.errors import ConfigError
from shinar.schemas.validate import DRAFT_07, pointer

MARK: Final = "x-gdpr-sensitive"

Schema = Mapping[str, Any]
Documents = Mapping[str, Schema]

#: Keywords with subschemas that govern the same value as the schema they belong to. Those that draft-07 does
#: not have (`dependentSchemas`, …) are followed as well: a mark under them is intentional.
_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("if", "then", "else", "not")
_SAME_VALUE_MAPS: Final = ("dependencies", "dependentSchemas")
#: Keywords with subschemas for members and items.
_BELOW: Final = (
    "additionalProperties",
    "unevaluatedProperties",
    "additionalItems",
    "unevaluatedItems",
    "items",
    "contains",
)
_BELOW_LISTS: Final = ("items", "prefixItems")
_BELOW_MAPS: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("definitions", "$defs")
#: Keywords whose content is data, not schemas: a member that is called like the mark is none there.
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
#: References whose target depends on the path a validator takes. Not part of draft-07.
_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")

_LISTS: Final = (*_SAME_VALUE_LISTS, *_BELOW_LISTS)
_SINGLES: Final = (*_SAME_VALUE, *_BELOW, "propertyNames")
_MAPS: Final = (*_SAME_VALUE_MAPS, *_BELOW_MAPS, *_DEFINITIONS)

#: Compiled indexes of schemas given as values, by their text.
_CACHE: Final = 256


class MarkedSchema:
    """A schema whose every reference is resolved and every mark is known to be found. Immutable."""

    def __init__(self, root: Schema, *, base: str = "", documents: Documents | None = None) -> None:
        self.root = root
        #: Base address of each subschema, by identity; the documents are kept, so identities stay unique.
        self._bases: dict[int, str] = {}
        #: Address (with an anchor as its fragment) -> subschema.
        self._addresses: dict[str, Any] = {}
        self._documents = {base: root, **(documents or {})}
        self._subschemas: list[Schema] = []
        for address, document in self._documents.items():
            _require_draft_07(document)
            self._register(address, document)
        self._index(list(self._documents.items()))
        for document in self._documents.values():
            self._refuse_hidden_marks(document)
        self._refuse_marked_names()

    def governing(self, schemas: tuple[Any, ...]) -> tuple[Schema, ...]:
        """These schemas and every branch and reference that governs the same value, each once."""
        found: dict[int, Schema] = {}
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, Mapping) and id(schema) not in found:
                found[id(schema)] = schema
                waiting.extend(_branches(schema))
                if "$ref" in schema:
                    waiting.append(self._resolve(schema["$ref"], self._bases[id(schema)])[1])
        return tuple(found.values())

    def members(self, schemas: tuple[Schema, ...], name: str) -> tuple[Any, ...]:
        found: list[Any] = []
        for schema in schemas:
            listed, patterns = schema.get("properties"), schema.get("patternProperties")
            own = [listed[name]] if isinstance(listed, Mapping) and name in listed else []
            if isinstance(patterns, Mapping):
                own += [below for text, below in patterns.items() if _pattern(text).search(name)]
            found += own or [schema.get("additionalProperties")]
            found.append(schema.get("unevaluatedProperties"))
        return tuple(below for below in found if isinstance(below, Mapping))

    def items(self, schemas: tuple[Schema, ...], index: int) -> tuple[Any, ...]:
        found: list[Any] = []
        for schema in schemas:
            items, prefix = schema.get("items"), schema.get("prefixItems")
            if isinstance(items, list):
                items = items[index] if index < len(items) else schema.get("additionalItems")
            if isinstance(prefix, list) and index < len(prefix):
                found.append(prefix[index])
            found += [items, schema.get("contains"), schema.get("unevaluatedItems")]
        return tuple(below for below in found if isinstance(below, Mapping))

    def _index(self, waiting: list[tuple[str, Any]]) -> None:
        """Every subschema of these (base address, document) pairs, and whatever their references lead to."""
        references: list[tuple[object, str]] = []
        while waiting:
            base, schema = waiting.pop()
            if isinstance(schema, Mapping) and id(schema) not in self._bases:
                base = self._note(schema, base)
                waiting += [(base, below) for below in _subschemas(schema)]
                if "$ref" in schema:
                    references.append((schema["$ref"], base))
        if references:
            # A target outside of the known keywords ("#/components/schemas/person") is indexed only now.
            self._index([self._resolve(reference, base) for reference, base in references])

    def _note(self, schema: Schema, base: str) -> str:
        """Check and register one subschema; returns the base address of its references."""
        _mark_of(schema)
        for keyword in _DYNAMIC:
            if keyword in schema:
                raise ConfigError(f"{keyword} is not supported; use $ref", setting="schema")
        for text in schema.get("patternProperties") or ():
            _pattern(text)
        identity = schema.get("$id")
        if isinstance(identity, str) and "$ref" not in schema:  # draft-07 ignores what stands beside a $ref
            address, fragment = urldefrag(urljoin(base, identity))
            if not fragment:
                base = address
                self._register(address, schema)
            elif identity.startswith("#"):  # a name within the document; the base stays
                self._register(f"{base}#{unquote(fragment)}", schema)
            else:
                raise ConfigError(f"$id {identity!r} must not have a fragment", setting="schema")
        anchor = schema.get("$anchor")
        if isinstance(anchor, str):
            self._register(f"{base}#{anchor}", schema)
        self._bases[id(schema)] = base
        self._subschemas.append(schema)
        return base

    def _register(self, address: str, schema: Any) -> None:
        known = self._addresses.setdefault(address, schema)
        if known is not schema:
            raise ConfigError(f"two subschemas have the address {address!r}; rename one", setting="schema")

    def _resolve(self, reference: object, base: str) -> tuple[str, Any]:
        """(address of its document, subschema) of a reference made below `base`."""
        if not isinstance(reference, str):
            raise ConfigError("a $ref must be a string", setting="schema")
        # Not left to urljoin, which drops a base such as urn:example:order.
        whole = base + reference if reference.startswith("#") else urljoin(base, reference)
        address, fragment = urldefrag(whole)
        fragment = unquote(fragment)
        if address not in self._addresses:
            raise ConfigError(
                f"$ref {reference!r} leads out of the schema, where marked fields cannot be found; "
                "copy the definition into the schema, or load both from one registry",
                setting="schema",
            )
        target = self._addresses[address]
        if fragment.startswith("/"):
            target = _at(target, fragment, reference)
        elif fragment:
            target = self._addresses.get(f"{address}#{fragment}")
        if not isinstance(target, (Mapping, bool)):
            raise ConfigError(f"$ref {reference!r} does not lead to a schema", setting="schema")
        return address, target

    def _refuse_hidden_marks(self, document: Schema) -> None:
        """A mark under a keyword that is not known would be ignored, and the value sent in the clear."""
        waiting: list[tuple[Any, tuple[object, ...]]] = [(document, ())]
        while waiting:
            node, path = waiting.pop()
            if isinstance(node, list):
                waiting += [(item, (*path, index)) for index, item in enumerate(node)]
            if not isinstance(node, Mapping):
                continue
            is_schema = id(node) in self._bases
            is_map_of_schemas = not is_schema and bool(path) and path[-1] in _MAPS
            if MARK in node and not is_schema and not is_map_of_schemas:
                raise ConfigError(
                    f"the mark at {pointer(path)} is not in a subschema and would be ignored; "
                    "move it to the property it protects",
                    setting=MARK,
                )
            skipped = _DATA if is_schema else frozenset()
            waiting += [(below, (*path, name)) for name, below in node.items() if name not in skipped]

    def _refuse_marked_names(self) -> None:
        for schema in self._subschemas:
            if is_marked(self.governing((schema.get("propertyNames"),))):
                raise ConfigError(
                    "propertyNames is marked, and names of members cannot be encrypted; "
                    "move the personal data into a value",
                    setting=MARK,
                )


def is_marked(schemas: tuple[Schema, ...]) -> bool:
    return any(_mark_of(schema) for schema in schemas)


def has_marks(documents: list[Schema]) -> bool:
    """Whether the word occurs at all; without it there is nothing to find and nothing to refuse."""
    return MARK.encode() in msgspec.json.encode(documents)


def compile_marks(schema: Schema) -> MarkedSchema:
    """The index of a schema given as a value; the same schema is compiled once."""
    try:
        return _compiled(msgspec.json.encode(schema))
    except (TypeError, msgspec.EncodeError):
        raise ConfigError("a schema consists of JSON values", setting="schema") from None


@functools.lru_cache(maxsize=_CACHE)
def _compiled(text: bytes) -> MarkedSchema:
    return MarkedSchema(msgspec.json.decode(text))


def _mark_of(schema: Schema) -> bool:
    """True, or a category such as "contact", marks; false and no mark at all do not; the rest is refused."""
    mark = schema.get(MARK, False)
    if isinstance(mark, bool) or (isinstance(mark, str) and mark.strip()):
        return bool(mark)
    shown = msgspec.json.encode(mark).decode()
    raise ConfigError(
        f"the mark must be true, false or the name of a category, not {shown:.60}", setting=MARK
    )


def _require_draft_07(document: Schema) -> None:
    declared = document.get("$schema")
    if declared is not None and declared not in DRAFT_07:
        raise ConfigError(f"declares {declared!r}; payload schemas are draft-07", setting="$schema")


def _branches(schema: Schema) -> Iterator[Any]:
    for keyword in _SAME_VALUE_LISTS:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from listed
    for keyword in _SAME_VALUE:
        yield schema.get(keyword)
    for keyword in _SAME_VALUE_MAPS:
        dependent = schema.get(keyword)
        if isinstance(dependent, Mapping):
            yield from dependent.values()


def _subschemas(schema: Schema) -> Iterator[Any]:
    for keyword in _LISTS:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from listed
    for keyword in _SINGLES:
        yield schema.get(keyword)
    for keyword in _MAPS:
        named = schema.get(keyword)
        if isinstance(named, Mapping):
            yield from named.values()


def _at(document: Any, path: str, reference: str) -> Any:
    """The value a JSON pointer leads to."""
    node = document
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(name)] if isinstance(node, list) else node[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ConfigError(f"$ref {reference!r} does not lead to a schema", setting="schema") from None
    return node


@functools.lru_cache(maxsize=_CACHE)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as exc:
        raise ConfigError(
            f"{text!r} is not a regular expression: {exc}", setting="patternProperties"
        ) from None
