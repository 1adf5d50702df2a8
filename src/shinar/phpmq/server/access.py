"""Who may do what: shared tokens and per-queue rules, outside the frozen PHPMQ messages.

A listener that asks for a token serves only clients that say hello with one. Tokens are compared as
SHA-256 digests in constant time, and never logged.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shinar.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rights:
    """What one client may touch; patterns are shell globs over queue names."""

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    #: Status, flush, transfer and metrics.
    admin: bool = False

    def may_read(self, queue: str) -> bool:
        return any(fnmatch.fnmatchcase(queue, pattern) for pattern in self.read)

    def may_write(self, queue: str) -> bool:
        return any(fnmatch.fnmatchcase(queue, pattern) for pattern in self.write)


EVERYTHING: Final = Rights("anyone", read=("*",), write=("*",), admin=True)
#: What a table of the rules may say.
_CLIENT_KEYS: Final = frozenset({"name", "sha256", "read", "write", "admin"})
_PLAIN_KEYS: Final = frozenset({"read", "write"})


@dataclass(frozen=True, slots=True)
class Access:
    #: SHA-256 of a token, in hex -> what its bearer may do. Empty: no token is asked for.
    tokens: tuple[tuple[str, Rights], ...] = ()
    #: What a plain PHPMQ client may do on a listener that asks for no token.
    plain: Rights = EVERYTHING

    def rights_of(self, token: str) -> Rights | None:
        digest = digest_of(token)
        found = None
        for known, rights in self.tokens:
            # No early end: the time taken says nothing about which token was nearly right.
            if hmac.compare_digest(known, digest):
                found = rights
        return found


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def from_token(token: str) -> Access:
    """One secret that opens everything."""
    if len(token) < 16:
        raise ConfigError("a token has at least 16 characters", setting="token")
    return Access(tokens=((digest_of(token), replace(EVERYTHING, name="token")),))


def from_file(path: Path) -> Access:
    """Rules as TOML: `[[client]]` with name, sha256, read, write, admin; `[plain]` with read, write.

    What is not said is not allowed, and a key that means nothing here is refused: it may be a slip.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", setting="rules", origin=str(path)) from None
    clients = document.get("client", [])
    plain = document.get("plain", {})
    if not isinstance(clients, list) or not isinstance(plain, dict) or set(document) - {"client", "plain"}:
        raise ConfigError(
            "must contain [[client]] tables and at most one [plain] table, and nothing else",
            setting="rules",
            origin=str(path),
        )
    tokens = tuple((_digest(entry, path), _rights(entry, _CLIENT_KEYS, path)) for entry in clients)
    return Access(tokens, replace(_rights(plain, _PLAIN_KEYS, path), name="plain"))


def _digest(entry: Any, path: Path) -> str:
    digest = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest.lower()) <= set("0123456789abcdef"):
        raise ConfigError(
            "every [[client]] needs sha256: 64 hex digits of its token's SHA-256",
            setting="rules",
            origin=str(path),
        )
    return digest.lower()


def _rights(entry: dict[str, Any], allowed: frozenset[str], path: Path) -> Rights:
    unknown = sorted(set(entry) - allowed)
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is not a key of this table; it takes {', '.join(sorted(allowed))}",
            setting="rules",
            origin=str(path),
        )
    name, admin = entry.get("name", "client"), entry.get("admin", False)
    read, write = entry.get("read", []), entry.get("write", [])
    lists_ok = all(
        isinstance(given, list) and all(isinstance(one, str) for one in given) for given in (read, write)
    )
    if not isinstance(name, str) or not isinstance(admin, bool) or not lists_ok:
        raise ConfigError(
            "name must be text, admin true or false, read and write lists of patterns",
            setting="rules",
            origin=str(path),
        )
    return Rights(name, tuple(read), tuple(write), admin)
