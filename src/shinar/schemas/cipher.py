"""Ciphers for single fields: AES-256-GCM through the `cryptography` package, and a ring of keys.

The text of a field is base64 of a 12-byte nonce, the ciphertext and its tag, as other languages'
SDKs write it; a key ring puts the key's id and a colon before it. Schemas and messages are unknown here.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from shinar.errors import ConfigError, MissingExtra

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


#: Begins the text of a field that is bound to its message; no key may be called like it.
BOUND: Final = "shinar-v2"


@runtime_checkable
class Cipher(Protocol):
    """Bring your own (a KMS, Vault) or take AesGcm. Must be safe to call from several threads."""

    def encrypt(self, plaintext: bytes) -> str: ...

    def decrypt(self, text: str) -> bytes:
        """The bytes `encrypt` was given; ValueError for a text it did not make, or another key's."""


@runtime_checkable
class BindingCipher(Protocol):
    """A cipher that authenticates a context (AEAD's associated data) together with the text."""

    def seal(self, plaintext: bytes, context: bytes) -> str: ...

    def open(self, text: str, context: bytes) -> bytes:
        """The bytes `seal` was given; ValueError for another key, another context or a changed text."""


class AesGcm:
    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"AES-256 needs a key of {_KEY_BYTES} bytes, not {len(key)}", setting="key")
        self._aead = _library().AESGCM(key)

    def __repr__(self) -> str:
        return "AesGcm(key=***)"

    def encrypt(self, plaintext: bytes) -> str:
        return self._seal(plaintext, None)

    def decrypt(self, text: str) -> bytes:
        return self._open(text, None, "not encrypted with this key")

    def seal(self, plaintext: bytes, context: bytes) -> str:
        return self._seal(plaintext, context)

    def open(self, text: str, context: bytes) -> bytes:
        return self._open(text, context, "not encrypted with this key for this field of this message")

    def _seal(self, plaintext: bytes, context: bytes | None) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        return base64.b64encode(nonce + self._aead.encrypt(nonce, plaintext, context)).decode("ascii")

    def _open(self, text: str, context: bytes | None, failure: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(text, validate=True)
            plaintext: bytes = self._aead.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], context)
        except (InvalidTag, binascii.Error, ValueError):
            raise ValueError(failure) from None
        return plaintext


class KeyRing:
    """Encrypts with the current key and decrypts with whichever key a text names, so keys can rotate.
    A text without an id (from another SDK, or from before the ring) is tried with `unnamed`."""

    def __init__(self, keys: Mapping[str, bytes], current: str, *, unnamed: str | None = None) -> None:
        for name in (current, *([unnamed] if unnamed is not None else [])):
            if name not in keys:
                raise ConfigError(f"the ring has no key {name!r}", setting="keys")
        for name in keys:
            if not name or ":" in name or name == BOUND:
                raise ConfigError(
                    f"{name!r} cannot be a key id: use a name that is not empty, has no colon and is not "
                    f"{BOUND!r}",
                    setting="keys",
                )
        self._ciphers = {name: AesGcm(key) for name, key in keys.items()}
        self._current = current
        self._unnamed = unnamed

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._ciphers)}; current={self._current})"

    def encrypt(self, plaintext: bytes) -> str:
        return f"{self._current}:{self._ciphers[self._current].encrypt(plaintext)}"

    def decrypt(self, text: str) -> bytes:
        cipher, sealed = self._chosen(text)
        return cipher.decrypt(sealed)

    def seal(self, plaintext: bytes, context: bytes) -> str:
        return f"{self._current}:{self._ciphers[self._current].seal(plaintext, context)}"

    def open(self, text: str, context: bytes) -> bytes:
        cipher, sealed = self._chosen(text)
        return cipher.open(sealed, context)

    def _chosen(self, text: str) -> tuple[AesGcm, str]:
        name, colon, sealed = text.rpartition(":")
        cipher = self._ciphers.get(name if colon else self._unnamed or "")
        if cipher is None:
            raise ValueError("encrypted with a key that is not in the ring")
        return cipher, sealed


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "cryptography":
            raise
        raise MissingExtra("field encryption", "cryptography", "crypto") from None
    return aead
