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
from typing import Any, Final

import shinar
from shinar.cli.support.parser import CommandParser, masked
from shinar.errors import Cancelled, ShinarError, UsageError
from shinar.printable import printable

OK: Final = 0
FAILED: Final = 2
INTERRUPTED: Final = 130

#: command -> (module with register(subparsers), what it is for)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "publish": ("publish", "send messages to a queue, confirmed"),
    "worker": ("worker", "run your handlers over a queue"),
    "tail": ("tail", "print the messages of a queue without consuming them"),
    "inspect": ("inspect", "print messages from a file or stdin, and say whether they are valid"),
    "bridge": ("bridge", "move or copy messages between any two brokers"),
    "broker": ("broker.broker", "run and maintain the embedded broker"),
    "pipeline": ("lake.pipeline", "write queues into tables on Spark"),
    "dlq": ("dead_letters.dlq", "list dead letters and their causes"),
    "redrive": ("dead_letters.redrive", "send dead letters back to their queues, each once"),
    "traces": ("lake.traces", "rebuild traces from the tables"),
    "fingerprints": ("lake.fingerprints", "group dead letters of the tables by cause"),
    "stuck": ("lake.stuck", "find messages that were produced and never finished"),
    "drift": ("lake.drift", "find contract drift per URN and language"),
    "rates": ("lake.rates", "print latency, retry and dead-letter rates"),
    "propose-schemas": ("lake.propose_schemas", "propose payload schemas from traffic"),
    "report": ("lake.report", "write one HTML page from the tables"),
    "completion": ("completion", "print a completion script for bash, zsh or fish"),
    "doctor": ("doctor", "check Java, Spark, extras and connections"),
    "config": ("config", "print settings and where they come from"),
}
#: Commands that run code of the user.
OWN_CODE: Final = frozenset({"worker", "pipeline"})


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """The whole command line, with details of the chosen command only: the others stay unimported."""
    top, commands = _top()
    top.set_defaults(whole_parser=whole_parser)
    if chosen in COMMANDS:
        _register(commands, COMMANDS[chosen][0])
    else:
        for name, (_, text) in COMMANDS.items():
            commands.add_parser(name, help=text)
    return top


def whole_parser() -> argparse.ArgumentParser:
    """The command line with the details of every command."""
    top, commands = _top()
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        _register(commands, module)
    return top


def _top() -> tuple[argparse.ArgumentParser, Any]:
    top = CommandParser(
        prog="shinar",
        description="Polyglot queues in Python, and on Spark.",
        epilog="Exit codes: 0 done, 1 findings or partial failure, 2 usage or I/O, 130 interrupted. "
        "Settings: flag, then SHINAR_*, then shinar.toml, then default.",
    )
    top.add_argument("--version", action="version", version=f"shinar {shinar.__version__}")
    return top, top.add_subparsers(dest="command", metavar="COMMAND", required=True)


def _register(commands: Any, module: str) -> None:
    importlib.import_module(f"shinar.cli.commands.{module}").register(commands)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # half an emoji in an error text is printed escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parser(chosen).parse_args(words)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except Cancelled as exc:
        print(f"shinar: {printable(str(exc))}", file=sys.stderr)
        return INTERRUPTED
    except ShinarError as exc:
        print(f"shinar: {printable(str(exc))} [{exc.code}]", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, UnicodeError, OverflowError, EOFError, RecursionError) as exc:
        return _failed(exc, own_code=chosen in OWN_CODE)
    finally:
        _stdout_fails()


def _failed(exc: Exception, *, own_code: bool) -> int:
    """The exit code of an error that is not ours, after a sentence about it."""
    unwritable = _stdout_fails()
    if isinstance(exc, BrokenPipeError) and (unwritable or not own_code):
        return OK  # `shinar tail … | head`: drivers turn a broken connection into a BrokerError
    if own_code and not unwritable:
        raise exc  # an error of the user's own code is worth its traceback
    what = "stdout" if unwritable else type(exc).__name__
    print(f"shinar: {what}: {printable(masked(str(exc)))} [{UsageError.code}]", file=sys.stderr)
    return FAILED


def _stdout_fails() -> bool:
    """Whether stdout is closed or full. If so, what is still buffered is discarded, so that Python's own
    flush at exit does not fail again."""
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
