"""Encrypt and decrypt the values a schema marks with `x-gdpr-sensitive` (RULES chapter 21).

Payload and schema are walked together, key by key: a name with a dot, an array in an array, a mark
in a branch (allOf, anyOf, …), behind a local $ref or in a recursive schema is found like any other.
Every branch counts, whether the payload fulfils it or not: better one field too many encrypted.
Validate the clear text: before `protect`, after `unprotect`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from shinar.errors import ConfigError, ContractError
from shinar.schemas.cipher import Cipher
from shinar.schemas.validate import pointer

MARK: Final = "x-gdpr-sensitive"
#: `data` must stay an object, so a payload that is marked as a whole travels as its one member.
WHOLE: Final = "x-gdpr-protected"

#: Keywords whose schemas govern the same value as the schema they stand in.
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLES: Final = ("if", "then", "else")

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
#: What happens to a marked value; it is given the value's place for its errors.
_Change = Callable[[Any, Path], Any]


def protect(schema: Schema, data: Mapping[str, Any], cipher: Cipher) -> dict[str, Any]:
    """A copy of `data` with every marked value replaced by a text; unmarked values are as they were."""

    def encrypt(value: Any, path: Path) -> Any:
        try:
            plaintext = msgspec.json.encode(value, order="deterministic")
        except (msgspec.EncodeError, UnicodeEncodeError, TypeError, OverflowError, ValueError):
            raise ContractError("cannot be written as JSON", pointer=pointer(("data", *path))) from None
        return cipher.encrypt(plaintext)

    if _is_marked(_expand((schema,), schema)):
        return {WHOLE: encrypt(dict(data), ())}
    changed: dict[str, Any] = _walk((schema,), data, (), _Walk(schema, encrypt))
    return changed


def unprotect(schema: Schema, data: Mapping[str, Any], cipher: Cipher) -> dict[str, Any]:
    """The inverse of `protect`. A marked value that is no text was never encrypted and stays; a text
    that does not open raises, with its place and without its content."""

    def decrypt(value: Any, path: Path) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(cipher.decrypt(value))
        except (ValueError, msgspec.DecodeError) as exc:
            reason = "what it holds is not JSON" if isinstance(exc, msgspec.DecodeError) else str(exc)
            raise ContractError(f"cannot be decrypted: {reason}", pointer=pointer(("data", *path))) from None

    if _is_marked(_expand((schema,), schema)):
        if set(data) != {WHOLE}:
            return dict(data)
        opened = decrypt(data[WHOLE], (WHOLE,))
        if not isinstance(opened, dict):
            raise ContractError("is not an object inside", pointer=pointer(("data", WHOLE)))
        return opened
    changed: dict[str, Any] = _walk((schema,), data, (), _Walk(schema, decrypt))
    return changed


def sensitive(schema: Schema, data: Mapping[str, Any]) -> list[str]:
    """JSON pointers of the marked values that this payload holds, for masking and audits."""
    found: list[str] = []

    def note(value: Any, path: Path) -> Any:
        found.append(pointer(("data", *path)))
        return value

    _walk((schema,), data, (), _Walk(schema, note))
    return found


class _Walk(msgspec.Struct, frozen=True):
    #: Local references start here.
    root: Schema
    change: _Change


def _walk(schemas: tuple[Schema, ...], value: Any, path: Path, walk: _Walk) -> Any:
    """The value with its marked parts changed; itself where nothing below is governed by a schema."""
    governing = _expand(schemas, walk.root)
    if _is_marked(governing):
        return walk.change(value, path)
    if isinstance(value, Mapping):
        return {
            name: _walk(below, member, (*path, name), walk)
            if (below := _members(governing, name))
            else member
            for name, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            _walk(below, item, (*path, index), walk) if (below := _items(governing, index)) else item
            for index, item in enumerate(value)
        ]
    return value


def _is_marked(schemas: tuple[Schema, ...]) -> bool:
    for schema in schemas:
        mark = schema.get(MARK)
        if mark is True or (isinstance(mark, str) and mark):
            return True
    return False


def _expand(schemas: tuple[Schema, ...], root: Schema) -> tuple[Schema, ...]:
    """These schemas and every branch and reference that governs the same value, each once."""
    found: dict[int, Schema] = {}
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, Mapping) and id(schema) not in found:
            found[id(schema)] = schema
            waiting.extend(_branches(schema, root))
    return tuple(found.values())


def _branches(schema: Schema, root: Schema) -> Iterator[Any]:
    for keyword in _LISTS:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from listed
    for keyword in _SINGLES:
        yield schema.get(keyword)
    dependent = schema.get("dependencies")
    if isinstance(dependent, Mapping):
        yield from dependent.values()
    if "$ref" in schema:
        yield _resolve(schema["$ref"], root)


def _members(schemas: tuple[Schema, ...], name: str) -> tuple[Any, ...]:
    found: list[Any] = []
    for schema in schemas:
        listed, patterns = schema.get("properties"), schema.get("patternProperties")
        own = [listed[name]] if isinstance(listed, Mapping) and name in listed else []
        if isinstance(patterns, Mapping):
            own += [below for pattern, below in patterns.items() if re.search(pattern, name)]
        found += own or [schema.get("additionalProperties")]
    return tuple(below for below in found if isinstance(below, Mapping))


def _items(schemas: tuple[Schema, ...], index: int) -> tuple[Any, ...]:
    found: list[Any] = []
    for schema in schemas:
        items = schema.get("items")
        if isinstance(items, list):
            items = items[index] if index < len(items) else schema.get("additionalItems")
        found += [items, schema.get("contains")]
    return tuple(below for below in found if isinstance(below, Mapping))


def _resolve(reference: object, root: Schema) -> Any:
    """A local reference (`#`, `#/definitions/person`). Another would leave fields in the clear unseen."""
    text = reference if isinstance(reference, str) else ""
    if not text.startswith("#"):
        raise ConfigError(
            f"$ref {text!r} leads out of the schema; marks are only found behind local ones", setting="schema"
        )
    node: Any = root
    for part in text[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(name)] if isinstance(node, list) else node[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ConfigError(f"$ref {text!r} leads nowhere", setting="schema") from None
    return node
