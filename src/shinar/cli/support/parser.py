"""argparse as the commands need it: words and flags in any order, and no password in an error text."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn

_SECRET_OPTION = re.compile(r"([?&][a-z_]*(?:password|token|secret|key)=)[^&\s'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """A text that may quote a URL, also one with a slip in it, without what could be its password."""
    text = re.sub(r"//.*@", "//***@", text, flags=re.DOTALL)
    text = re.sub(r"[^\s'\"]*(?<!//\*\*\*)@", "***@", text)
    return _SECRET_OPTION.sub(r"\1***", text)


class Parser(argparse.ArgumentParser):
    """Python 3.11 fills an optional word with nothing as soon as a flag stands before it."""

    _mixing = False

    def parse_known_args(  # type: ignore[override]  # argparse's own has overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        super().error(masked(message))


def seconds(text: str) -> float:
    """A flag's length of time: 0 or more, and not for ever."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def some_seconds(text: str) -> float:
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
