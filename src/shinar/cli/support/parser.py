"""argparse as the commands need it: words and flags in any order, suggestions for typing errors, and no
password in an error text."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_SECRET_OPTION = re.compile(r"([?&][a-z_]*(?:password|token|secret|key)=)[^&\s'\"]+", re.IGNORECASE)
_INVALID_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)", re.DOTALL)


def masked(text: str) -> str:
    """A text that may quote a URL, also a malformed one, without what could be its password."""
    text = re.sub(r"//.*@", "//***@", text, flags=re.DOTALL)
    text = re.sub(r"[^\s'\"]*(?<!//\*\*\*)@", "***@", text)
    return _SECRET_OPTION.sub(r"\1***", text)


class CommandParser(argparse.ArgumentParser):
    """Python 3.11 fills an optional word with nothing as soon as a flag stands before it."""

    _mixing = False

    def parse_known_args(  # type: ignore[override]  # argparse's own has overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            known, rest = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False
        if rest:  # here, where the command's own flags are known, and not in the parser above
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._suggestion(rest)}")
        return known, rest

    def error(self, message: str) -> NoReturn:
        wrong = _INVALID_CHOICE.search(message)
        if wrong:
            message += _did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        super().error(masked(message))

    def _suggestion(self, rest: Sequence[str]) -> str:
        flag = next((word.partition("=")[0] for word in rest if word.startswith("--")), "")
        return _did_you_mean(flag, self._option_string_actions) if flag else ""


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def count(text: str) -> int:
    """A flag's whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """A flag's duration in seconds: 0 or more, and finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def some_seconds(text: str) -> float:
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
