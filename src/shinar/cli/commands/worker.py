"""`shinar worker`: run the handlers of a module over a queue until told to stop."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shinar.cli.support.output import add_output, add_settings, address, emit, settings_of
from shinar.cli.support.settings import Settings
from shinar.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

EXAMPLES = """examples:
  shinar worker app:handlers --url phpmq://localhost/emails --concurrency 8
  shinar worker app:handlers --url sqs://eu-west-1/orders --until-empty
app:handlers names a shinar.Handlers, or a mapping of URN to function, in module app.
Ctrl-C or SIGTERM once finishes what is in hand; twice hands it back at once.
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
    add_settings(
        parser,
        *("url", "queue", "concurrency", "prefetch", "max_attempts", "on_unknown_urn", "on_exhausted"),
        *("backoff_base_s", "backoff_multiplier", "backoff_max_s", "backoff_jitter", "dead_letter_queue"),
        *("stop_timeout_s", "registry", "metrics_port", "log_level", "log_format"),
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.observe import Metrics, setup_logging
    from shinar.worker import Endpoint, Limits, Worker

    settings = settings_of(args)
    _check(settings)
    setup_logging(level=settings["log_level"], json_lines=settings["log_format"] == "json")
    url, queue = address(args, settings)
    metrics = Metrics()
    worker = Worker(
        url,
        _handlers(args.handlers),
        queue=queue,
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
        metrics=metrics,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: worker.stop())
    endpoint = None
    if settings["metrics_port"]:
        try:
            endpoint = Endpoint(metrics, worker.health, port=settings["metrics_port"])
        except (OSError, OverflowError) as exc:
            text = f"port {settings['metrics_port']} cannot be served: {exc}"
            raise ConfigError(text, setting="metrics_port") from None
    try:
        report = worker.run()
    finally:
        if endpoint is not None:
            endpoint.close()
    if args.json:
        emit({"received": report.received, "outcomes": report.counts, "stopped_by": report.stopped_by})
    elif not args.quiet:
        counts = (
            ", ".join(f"{count:,} {name}" for name, count in sorted(report.counts.items())) or "nothing to do"
        )
        print(f"received {report.received:,}: {counts} (stopped by {report.stopped_by})", file=sys.stderr)
    return 1 if report.count("unsettled") else 0


def _check(settings: Settings) -> None:
    for name, known in (("log_level", LEVELS), ("log_format", FORMATS)):
        if settings[name].lower() not in known:
            raise ConfigError(f"{settings[name]!r} is none of {', '.join(known)}", setting=name)
    if settings["prefetch"] < 0:
        raise ConfigError("must not be negative; 0 chooses", setting="prefetch")
    if settings["concurrency"] < 1:
        raise ConfigError("must be at least 1", setting="concurrency")


def _handlers(text: str) -> Any:
    from shinar.worker import Handlers

    found = load_handlers(text)
    if not isinstance(found, (Handlers, Mapping)):
        kind = type(found).__name__
        raise ConfigError(f"{text} is a {kind}, neither Handlers nor a mapping of URNs", setting="handlers")
    return found


def load_handlers(text: str) -> Any:
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{text!r}: write module:name, such as app:handlers", setting="handlers")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name != module_name.split(".")[0] and exc.name != module_name:
            raise
        raise ConfigError(f"no module {module_name!r} here or on the path", setting="handlers") from None
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"module {module_name} has no {name!r}", setting="handlers") from None


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
