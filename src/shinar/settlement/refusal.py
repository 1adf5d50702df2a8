"""Whose fault is a failed write: the one message's, or that of the whole place? Pure; knows errors only."""

from __future__ import annotations

from typing import Final

from shinar.errors import BodyTooLarge, ConfigError, MissingExtra, ShinarError, UnknownScheme, UsageError

#: Wrong for every message alike.
_SETUP: Final = (ConfigError, UnknownScheme, MissingExtra)


def refuses_message(error: ShinarError) -> bool:
    """True when this broker will never take this message, so that its neighbours may still pass."""
    if isinstance(error, BodyTooLarge):
        return True
    return isinstance(error, UsageError) and not isinstance(error, _SETUP) and not error.transient
