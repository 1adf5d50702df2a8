"""Encrypt and decrypt the values a schema marks with `x-gdpr-sensitive` (contract chapter 21).

Payload and schema are walked together, key by key: a name with a dot, an array in an array, a mark in a
branch (allOf, anyOf, …), behind a reference or in a recursive schema is found like any other. Every branch
counts, whether the payload fulfils it or not: better one field too many encrypted.
Validate the clear text: before `protect`, after `unprotect`.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from shinar.errors import ConfigError, ContractError
from shinar.schemas.cipher import BOUND, BindingCipher, Cipher
from shinar.schemas.marks import MarkedSchema, Schema, compile_marks, is_marked
from shinar.schemas.registry import Entry
from shinar.schemas.validate import pointer

#: `data` must stay an object, so a payload that is marked as a whole travels as its one member.
WHOLE: Final = "x-gdpr-protected"

Path = tuple[str | int, ...]
#: What happens to a marked value; it is given the value's path for its errors.
_Change = Callable[[Any, Path], Any]

#: Leave the encoder as one JSON value without members or items, so no schema governs anything inside.
_SCALARS: Final = (str, int, float, bool, type(None), decimal.Decimal)
#: Leave the encoder as JSON arrays.
_ARRAYS: Final = (list, tuple, set, frozenset)


def protect(
    schema: Schema | Entry, data: Mapping[str, Any], cipher: Cipher, *, message_id: str | None = None
) -> dict[str, Any]:
    """A copy of `data` with every marked value replaced by a text; unmarked values are as they were.

    Args:
        message_id: Binds each text to its field and to this message, so that it opens nowhere else. Without
            it the text has the form that the other languages' SDKs read.
    """
    marks = _marks(schema)
    seal = _sealer(cipher, message_id)

    def encrypt(value: Any, path: Path) -> Any:
        where = pointer(("data", *path))
        try:
            plaintext = msgspec.json.encode(value, order="deterministic")
        except (msgspec.EncodeError, UnicodeEncodeError, TypeError, OverflowError, ValueError):
            raise ContractError("cannot be written as JSON", pointer=where) from None
        return seal(plaintext, where)

    if is_marked(marks.governing((marks.root,))):
        return {WHOLE: encrypt(dict(data), ())}
    return _changed(marks, data, encrypt)


def unprotect(
    schema: Schema | Entry,
    data: Mapping[str, Any],
    cipher: Cipher,
    *,
    message_id: str | None = None,
    allow_unbound: bool = True,
) -> dict[str, Any]:
    """The inverse of `protect`. A marked value that is not a text was never encrypted and is kept; a text
    that does not open raises, with its pointer and without its content.

    Args:
        message_id: The `meta.id` of the message; needed for texts that are bound to it.
        allow_unbound: False refuses texts that are not bound to their message, which somebody could have
            copied from another one.
    """
    marks = _marks(schema)
    unseal = _unsealer(cipher, message_id, allow_unbound)

    def decrypt(value: Any, path: Path) -> Any:
        if not isinstance(value, str):
            return value
        # The whole payload was sealed as /data; its member is only how it travels.
        where = pointer(("data", *path))
        try:
            return msgspec.json.decode(unseal(value, "/data" if path == (WHOLE,) else where))
        except (ValueError, msgspec.DecodeError) as exc:
            reason = "the decrypted text is not JSON" if isinstance(exc, msgspec.DecodeError) else str(exc)
            raise ContractError(f"cannot be decrypted: {reason}", pointer=where) from None

    if is_marked(marks.governing((marks.root,))):
        if set(data) != {WHOLE}:
            return dict(data)
        opened = decrypt(data[WHOLE], (WHOLE,))
        if not isinstance(opened, dict):
            raise ContractError("the decrypted payload is not an object", pointer=pointer(("data", WHOLE)))
        return opened
    return _changed(marks, data, decrypt)


def sensitive(schema: Schema | Entry, data: Mapping[str, Any]) -> list[str]:
    """JSON pointers of the marked values of this payload, for masking and audits."""
    found: list[str] = []

    def note(value: Any, path: Path) -> Any:
        found.append(pointer(("data", *path)))
        return value

    _changed(_marks(schema), data, note)
    return found


def _marks(schema: Schema | Entry) -> MarkedSchema:
    if isinstance(schema, Entry):
        return schema.marks or compile_marks(schema.schema)
    if isinstance(schema, Mapping):
        return compile_marks(schema)
    # A registry's answer for an unknown URN is None: it must not pass for "nothing is marked".
    raise TypeError(f"give a registry's Entry or a JSON Schema, not {type(schema).__name__}")


def _sealer(cipher: Cipher, message_id: str | None) -> Callable[[bytes, str], str]:
    if message_id is None:
        return lambda plaintext, _: cipher.encrypt(plaintext)
    if not message_id:
        raise ContractError("a message without an id cannot have its fields bound to it", pointer="/meta/id")
    binding = _binding(cipher)
    return lambda plaintext, where: f"{BOUND}:{binding.seal(plaintext, _context(message_id, where))}"


def _unsealer(cipher: Cipher, message_id: str | None, allow_unbound: bool) -> Callable[[str, str], bytes]:
    def unseal(text: str, where: str) -> bytes:
        version, colon, sealed = text.partition(":")
        if not colon or version != BOUND:
            if not allow_unbound:
                raise ValueError("it is not bound to its message")
            return cipher.decrypt(text)
        if not message_id:
            raise ValueError("it is bound to its message; pass message_id")
        return _binding(cipher).open(sealed, _context(message_id, where))

    return unseal


def _binding(cipher: Cipher) -> BindingCipher:
    if not isinstance(cipher, BindingCipher):
        raise ConfigError(
            f"{type(cipher).__name__} cannot bind a text to its message; give it `seal` and `open`",
            setting="cipher",
        )
    return cipher


def _context(message_id: str, where: str) -> bytes:
    return msgspec.json.encode([BOUND, message_id, where])


def _changed(marks: MarkedSchema, data: Mapping[str, Any], change: _Change) -> dict[str, Any]:
    try:
        changed: dict[str, Any] = _walk((marks.root,), data, (), _Walk(marks, change))
    except RecursionError:
        raise ContractError("is nested too deep to be encrypted; flatten it", pointer="/data") from None
    return changed


class _Walk(msgspec.Struct, frozen=True):
    marks: MarkedSchema
    change: _Change


def _walk(schemas: tuple[Any, ...], value: Any, path: Path, walk: _Walk) -> Any:
    """The value with its marked parts changed; itself where nothing below is governed by a schema."""
    marks = walk.marks
    governing = marks.governing(schemas)
    if is_marked(governing):
        return walk.change(value, path)
    if isinstance(value, Mapping):
        return {
            name: _walk(below, member, (*path, name), walk)
            if (below := marks.members(governing, _member_name(name, path)))
            else member
            for name, member in value.items()
        }
    if isinstance(value, _ARRAYS):
        return [
            _walk(below, item, (*path, index), walk) if (below := marks.items(governing, index)) else item
            for index, item in enumerate(value)
        ]
    if not isinstance(value, _SCALARS):
        # An object of the caller's own (a dataclass, say) may contain marked values that cannot be seen here.
        raise ContractError(
            f"{type(value).__name__} is not JSON; convert it to a dict or a list first",
            pointer=pointer(("data", *path)),
        )
    return value


def _member_name(name: object, path: Path) -> str:
    if not isinstance(name, str):
        raise ContractError(f"the name {name!r} is not a string", pointer=pointer(("data", *path)))
    return name
