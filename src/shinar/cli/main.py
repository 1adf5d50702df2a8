"""`shinar`: finds the command, imports only its module, runs it, and turns errors into exit codes.

Exit codes: 0 done, 1 findings or a partial failure, 2 usage or I/O, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import shinar
from shinar.cli.support.parser import Parser, masked
from shinar.errors import Cancelled, ShinarError, UsageError

OK: Final = 0
FINDINGS: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130

#: command -> (module with register(subparsers), what it is for)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "publish": ("publish", "send messages to a queue, confirmed"),
    "worker": ("worker", "run your handlers over a queue"),
    "tail": ("tail", "look at the messages of a queue without consuming them"),
    "inspect": ("inspect", "pretty-print and judge messages from a file or stdin"),
    "bridge": ("bridge", "move or copy messages between any two brokers"),
    "broker": ("broker.broker", "run and look after the embedded broker"),
    "pipeline": ("lake.pipeline", "queues into tables on Spark"),
    "dlq": ("dead_letters.dlq", "see why messages died"),
    "redrive": ("dead_letters.redrive", "send dead letters back, once"),
    "traces": ("lake.questions", "rebuild traces from the tables"),
    "fingerprints": ("lake.questions", "group dead letters of the tables by cause"),
    "stuck": ("lake.questions", "find messages that were produced and never finished"),
    "drift": ("lake.questions", "find contract drift per URN and language"),
    "rates": ("lake.questions", "latency, retry and dead-letter rates"),
    "propose-schemas": ("lake.questions", "propose payload schemas from traffic"),
    "report": ("lake.questions", "write one HTML page from the tables"),
    "doctor": ("doctor", "check Java, Spark, extras and connections"),
    "config": ("config", "show settings and where they come from"),
}
#: Commands that run code of the user.
OWN_CODE: Final = frozenset({"worker", "pipeline"})


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """The whole command line, with details of the chosen command only: the others stay unimported."""
    top = Parser(
        prog="shinar",
        description="Polyglot queues in Python, and on Spark.",
        epilog="Exit codes: 0 done, 1 findings or partial failure, 2 usage or I/O, 130 interrupted. "
        "Settings: flag, then SHINAR_*, then shinar.toml, then default.",
    )
    top.add_argument("--version", action="version", version=f"shinar {shinar.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if chosen in COMMANDS:
        module = importlib.import_module(f"shinar.cli.commands.{COMMANDS[chosen][0]}")
        module.register(commands)
    else:
        for name, (_, text) in COMMANDS.items():
            commands.add_parser(name, help=text)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # half an emoji in somebody's error text is shown escaped
            stream.reconfigure(errors="backslashreplace")
    code: int = OK
    try:
        args = parser(chosen).parse_args(words)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except Cancelled as exc:
        print(f"shinar: {exc}", file=sys.stderr)
        return INTERRUPTED
    except ShinarError as exc:
        print(f"shinar: {exc} [{exc.code}]", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, UnicodeError, OverflowError, EOFError, RecursionError) as exc:
        unwritable = _stdout_fails()
        if unwritable and isinstance(exc, BrokenPipeError):  # `shinar tail … | head`
            return code
        if chosen in OWN_CODE and not unwritable:
            raise  # an error of the user's own code is worth its traceback
        what = "stdout" if unwritable else type(exc).__name__
        print(f"shinar: {what}: {masked(str(exc))} [{UsageError.code}]", file=sys.stderr)
        return FAILED
    finally:
        _stdout_fails()


def _stdout_fails() -> bool:
    """Whether stdout is closed or full; what is left for it then goes nowhere, so that nothing stumbles
    over it again."""
    try:
        sys.stdout.flush()
        if _reader_is_gone():
            raise BrokenPipeError
    except OSError:
        with suppress(OSError, ValueError):  # a stream without a file behind it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _reader_is_gone() -> bool:
    """A write that failed has emptied the buffer, so the next flush succeeds; the pipe itself still knows."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), select.POLLERR)
    except (OSError, ValueError):  # a stream without a file behind it
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
