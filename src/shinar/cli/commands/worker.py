"""`shinar worker`: run the handlers of a module over a queue until told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from shinar.cli.support.output import add_output, add_settings, address, emit, settings_of
from shinar.cli.support.settings import Settings
from shinar.cli.support.user_code import load_object
from shinar.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
#: Exit code after a second signal, as of any interrupted command.
INTERRUPTED: Final = 130
#: Client libraries that tell their inner life at info; they get through from warning on, or at debug.
TALKATIVE: Final = (
    "asyncio",
    "botocore",
    "urllib3",
    "uamqp",
)

EXAMPLES = """examples:
  shinar worker app:handlers --url phpmq://localhost/emails --concurrency 8
  shinar worker app:handlers --url sqs://eu-west-1/orders --until-empty
  shinar worker app:handlers --url redis://localhost --queue orders=3 --queue emails
app:handlers names a shinar.Handlers, or a mapping of URN to function, in module app.
Ctrl-C or SIGTERM once finishes what is in hand; twice hands it back and exits with 130; a third time exits
at once, whatever a handler is doing.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "worker",
        help="run your handlers over a queue",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("handlers", help="module:name of your handlers")
    parser.add_argument("--max-messages", type=int, help="stop after so many messages")
    parser.add_argument("--until-empty", action="store_true", help="stop when the queue is empty")
    parser.add_argument("--max-time-s", type=float, help="stop after so many seconds")
    parser.add_argument("--max-memory-mb", type=float, help="stop when the process is larger")
    parser.add_argument("--timeout-s", type=float, help="fail a handler that runs longer")
    parser.add_argument("--rate", type=float, help="at most so many messages a second")
    parser.add_argument(
        "--idempotency", metavar="URL", help="store of handled ids: sqlite:///…, redis://…, memory://"
    )
    parser.add_argument(
        "--queue",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="queue, if the URL names none; several with --queue a --queue b=3 (b has weight 3)",
    )
    parser.add_argument("--tracebacks", action="store_true", help="log the traceback of every failure")
    add_settings(
        parser,
        *("url", "concurrency", "prefetch", "max_attempts", "on_unknown_urn", "on_exhausted"),
        *("backoff_base_s", "backoff_multiplier", "backoff_max_s", "backoff_jitter", "dead_letter_queue"),
        *("stop_timeout_s", "registry", "metrics_port", "metrics_host", "log_level", "log_format"),
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.observe import Metrics
    from shinar.worker import Limits, Worker

    queues = _queues(args.queue or [])
    args.queue = next(iter(queues), None)
    settings = settings_of(args)
    _check(settings)
    _log(settings)
    url, queue = address(args, settings)
    metrics = Metrics()
    worker = Worker(
        url,
        _handlers(args.handlers),
        queue=queues or queue,
        policy=policy_of(settings),
        steps=_steps(args, settings, metrics),
        concurrency=settings["concurrency"],
        prefetch=settings["prefetch"],
        limits=Limits(
            max_messages=args.max_messages,
            until_empty=args.until_empty,
            max_time_s=args.max_time_s,
            max_memory_mb=args.max_memory_mb,
        ),
        stop_timeout_s=settings["stop_timeout_s"],
        tracebacks=args.tracebacks,
        metrics=metrics,
    )
    signals = Signals(worker.stop)
    endpoint = _endpoint(settings, metrics, worker.health)
    try:
        report = worker.run()
    finally:
        if endpoint is not None:
            endpoint.close()
    _tell(args, settings, report)
    if signals.count > 1:
        return INTERRUPTED
    return 1 if report.count("unsettled") else 0


class Signals:
    """SIGINT and SIGTERM: the first and second stop the worker, a third ends the process where it stands."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 2:  # a handler that blocks is not waited for; its message comes back with its lease
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(INTERRUPTED)
        self._stop()


def _queues(words: list[str]) -> dict[str, int]:
    """`a`, `b=3` -> names and weights."""
    found: dict[str, int] = {}
    for word in words:
        if "," in word:
            separate = " ".join(f"--queue {name.strip()}" for name in word.split(","))
            raise ConfigError(f"{word!r} is one name; for several queues write {separate}", setting="--queue")
        name, equals, weight = word.rpartition("=")
        if not (equals and weight.isdecimal()):
            name, weight = word, "1"
        if name in found:
            raise ConfigError(
                f"{name} is given twice; write {name}=2 for twice the weight", setting="--queue"
            )
        found[name] = int(weight)
    return found


def _log(settings: Settings) -> None:
    """What handlers log comes in the same format as ours, with the fields of the message they handle."""
    from shinar.brokers.registry import client_packages
    from shinar.observe import setup_logging
    from shinar.worker.context import log_fields

    level = settings["log_level"].lower()
    setup_logging(
        level=level, json_lines=settings["log_format"].lower() == "json", logger="", fields=log_fields
    )
    if level == "info":
        for name in (*TALKATIVE, *client_packages()):
            logging.getLogger(name).setLevel(logging.WARNING)


def _endpoint(settings: Settings, metrics: Any, health: Any) -> Any:
    from shinar.worker import Endpoint

    host, port = settings["metrics_host"], settings["metrics_port"]
    if not port:
        return None
    try:
        return Endpoint(metrics, health, host, port)
    except (OSError, OverflowError) as exc:
        raise ConfigError(f"{host} port {port} cannot be served: {exc}", setting="metrics_port") from None


def _tell(args: argparse.Namespace, settings: Settings, report: Any) -> None:
    if args.json:
        emit({"received": report.received, "outcomes": report.counts, "stopped_by": report.stopped_by})
        return
    if args.quiet:
        return
    counts = (
        ", ".join(f"{count:,} {name}" for name, count in sorted(report.counts.items())) or "nothing to do"
    )
    text = f"received {report.received:,}: {counts} (stopped by {report.stopped_by})"
    if settings["log_format"].lower() == "json":
        logging.getLogger("shinar.worker").info(text)
    else:
        print(text, file=sys.stderr)


def _check(settings: Settings) -> None:
    for name, known in (("log_level", LEVELS), ("log_format", FORMATS)):
        if settings[name].lower() not in known:
            raise ConfigError(f"{settings[name]!r} is not one of {', '.join(known)}", setting=name)
    if settings["prefetch"] < 0:
        raise ConfigError("must not be negative; 0 lets the worker choose", setting="prefetch")
    if settings["concurrency"] < 1:
        raise ConfigError("must be at least 1", setting="concurrency")


def _handlers(text: str) -> Any:
    from shinar.worker import Handlers

    found = load_object(text, "handlers", "app:handlers")
    if not isinstance(found, (Handlers, Mapping)):
        kind = type(found).__name__
        raise ConfigError(f"{text} is a {kind}, neither Handlers nor a mapping of URNs", setting="handlers")
    return found


def policy_of(settings: Settings) -> Any:
    from shinar.settlement import Backoff, Policy

    return Policy(
        max_attempts=settings["max_attempts"],
        on_unknown_urn=settings["on_unknown_urn"],
        on_exhausted=settings["on_exhausted"],
        backoff=Backoff(
            settings["backoff_base_s"],
            settings["backoff_multiplier"],
            settings["backoff_max_s"],
            settings["backoff_jitter"],
        ),
        dead_letter_queue=settings["dead_letter_queue"],
    )


def _steps(args: argparse.Namespace, settings: Settings, metrics: Any) -> list[Any]:
    from shinar.worker import idempotent, log_step, metrics_step, rate_limit, timeout, validated

    steps: list[Any] = [metrics_step(metrics)]
    if settings["log_level"] in ("debug", "info") and settings["log_format"] == "json":
        steps.append(log_step())
    if args.rate:
        steps.append(rate_limit(args.rate))
    if args.idempotency:
        from shinar.idempotency import open_store

        steps.append(idempotent(open_store(args.idempotency)))
    if args.timeout_s:
        steps.append(timeout(args.timeout_s))
    if settings["registry"]:
        from shinar.schemas import Registry

        steps.append(validated(Registry.load(settings["registry"]).validate))
    return steps
