"""Ciphers for single fields: AES-256-GCM through the `cryptography` package, and a ring of keys.

The text of a field is base64 of a 12-byte nonce, the ciphertext and its tag, as other languages'
SDKs write it; a key ring puts the key's id and a colon before it. Knows no schema and no message.
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


@runtime_checkable
class Cipher(Protocol):
    """Bring your own (a KMS, Vault) or take AesGcm. Must be safe to call from several threads."""

    def encrypt(self, plaintext: bytes) -> str: ...

    def decrypt(self, text: str) -> bytes:
        """The bytes `encrypt` was given; ValueError for a text it did not make, or another key's."""


class AesGcm:
    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"AES-256 needs {_KEY_BYTES} bytes, not {len(key)}", setting="key")
        self._aead = _library().AESGCM(key)

    def __repr__(self) -> str:
        return "AesGcm(key=***)"

    def encrypt(self, plaintext: bytes) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        return base64.b64encode(nonce + self._aead.encrypt(nonce, plaintext, None)).decode("ascii")

    def decrypt(self, text: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(text, validate=True)
            plaintext: bytes = self._aead.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None)
        except (InvalidTag, binascii.Error, ValueError):
            raise ValueError("not encrypted with this key") from None
        return plaintext


class KeyRing:
    """Encrypts with the current key and decrypts with whichever key a text names, so keys can rotate.
    A text without an id (from another SDK, or from before the ring) is tried with `unnamed`."""

    def __init__(self, keys: Mapping[str, bytes], current: str, *, unnamed: str | None = None) -> None:
        for name in (current, *([unnamed] if unnamed is not None else [])):
            if name not in keys:
                raise ConfigError(f"there is no key {name!r}", setting="keys")
        for name in keys:
            if not name or ":" in name:
                raise ConfigError(
                    f"{name!r} is no key id: it must not be empty or hold a colon", setting="keys"
                )
        self._ciphers = {name: AesGcm(key) for name, key in keys.items()}
        self._current = current
        self._unnamed = unnamed

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._ciphers)}; current={self._current})"

    def encrypt(self, plaintext: bytes) -> str:
        return f"{self._current}:{self._ciphers[self._current].encrypt(plaintext)}"

    def decrypt(self, text: str) -> bytes:
        name, colon, sealed = text.rpartition(":")
        cipher = self._ciphers.get(name if colon else self._unnamed or "")
        if cipher is None:
            raise ValueError("encrypted with a key that is not in the ring")
        return cipher.decrypt(sealed)


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "cryptography":
            raise
        raise MissingExtra("field encryption", "cryptography", "crypto") from None
    return aead
