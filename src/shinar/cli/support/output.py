"""Flags, output and progress that all commands have. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.settings import FILE, SETTINGS, Settings, resolve
from shinar.clock import SYSTEM
from shinar.errors import ConfigError
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.brokers import BrokerUrl

#: How a URL in the ledger shows that there was a secret.
MASK: Final = "***"
#: Seconds between two progress lines when stderr is not a terminal.
PLAIN_PROGRESS_S: Final = 10.0


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Flags for these settings; their defaults come from `resolve`, not from argparse."""
    for name in names:
        setting = SETTINGS[name]
        kind = setting.read if callable(setting.read) else str
        default = f" (default {setting.default})" if setting.default not in ("", 0) else ""
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=None, help=f"{setting.help}{default}"
        )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no summary on stderr")


def settings_of(args: argparse.Namespace) -> Settings:
    return resolve(vars(args))


def address(args: argparse.Namespace, settings: Settings) -> tuple[Any, str]:
    """(parsed URL, queue) from the command's URL and --queue; a clear error if either is missing."""
    from shinar.brokers import parse
    from shinar.brokers.registry import row

    text = settings["url"]
    if not text:
        raise ConfigError("give a broker URL, or set SHINAR_URL", setting="url")
    url = with_token(parse(text), settings)
    queue = settings["queue"] or url.queue
    if not queue:
        example = row(url.scheme).example
        raise ConfigError(f"name one in the URL, as in {example}, or with --queue", setting="queue")
    return url, queue


def with_token(url: BrokerUrl, settings: Settings, *, named_by: str | None = "url") -> BrokerUrl:
    """The URL with SHINAR_TOKEN, if its broker takes one and the URL brings none of its own.

    Args:
        named_by: The setting that led to this URL (`url`, or the `ledger` whose job has it); None when it
            was typed on the command line whatever the settings say.
    """
    from shinar.brokers.registry import row

    if not settings["token"] or not row(url.scheme).takes_token:
        return url
    if url.password or url.option("token", MASK) != MASK:
        return url
    if named_by and settings.chosen_by_user("token") and not settings.chosen_by_user(named_by):
        raise ConfigError(
            f"is not sent to {url}, because only {FILE} in the working directory names that server; "
            f"give the URL on the command line or in SHINAR_URL, or name the file in SHINAR_CONFIG",
            setting="token",
            origin=settings.origin("token"),
        )
    return replace(url, options=MappingProxyType({**url.options, "token": settings["token"]}))


def emit(value: object) -> None:
    """One JSON object on a line of stdout."""
    print(as_line(value, sys.stdout.encoding))


def as_line(value: object, encoding: str | None) -> str:
    """JSON in the stream's own characters; all escaped where some cannot be written (half an emoji) or could
    disturb a terminal (C1 controls, bidirectional marks)."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, default=str)
    return text if printable(text) == text else json.dumps(value, default=str)


def time_text(at_ms: int | None) -> str:
    """UTC, or the number itself where it cannot be a time (some producers write nanoseconds)."""
    if at_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


class Stopper:
    """The first signal lets the current batch finish; the second stops at once."""

    def __init__(self, stop: Callable[[], None] = lambda: None, *, quiet: bool = False) -> None:
        self._stop_it, self._quiet = stop, quiet
        self._before: dict[int, Any] = {}
        self.asked = False

    def __enter__(self) -> Stopper:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._stop_it()
        if not self._quiet:
            print("\nstopping after the current batch; press Ctrl-C again to stop at once", file=sys.stderr)


class Progress:
    """Count, rate and ETA on stderr: a live line on a terminal, a plain one now and then elsewhere."""

    def __init__(self, what: str, total: int | None = None, *, quiet: bool = False) -> None:
        self._what, self._total, self._quiet = what, total, quiet
        self._live = sys.stderr.isatty()
        self._started_s = self._shown_s = SYSTEM.monotonic_s()
        self.count = 0

    def add(self, amount: int = 1) -> None:
        self.count += amount
        now_s = SYSTEM.monotonic_s()
        if not self._quiet and now_s - self._shown_s > (0.2 if self._live else PLAIN_PROGRESS_S):
            self._shown_s = now_s
            self._show("\r" if self._live else "", "" if self._live else "\n")

    def done(self) -> None:
        if not self._quiet and self._live and self._shown_s > self._started_s:
            self._show("\r", "\n")

    def _show(self, before: str, after: str) -> None:
        spent_s = max(SYSTEM.monotonic_s() - self._started_s, 1e-9)
        rate = self.count / spent_s
        text = f"{self._what}: {self.count:,}"
        if self._total:
            left_s = (self._total - self.count) / rate if rate else 0.0
            text += f" of {self._total:,} ({100 * self.count / self._total:.0f} %), {left_s:.0f} s left"
        sys.stderr.write(f"{before}{text}, {rate:,.0f}/s   {after}")
        sys.stderr.flush()
