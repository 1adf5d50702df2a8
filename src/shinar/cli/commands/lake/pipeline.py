"""`shinar pipeline`: run a job into a lake, and look after the lake. Spark is imported only to run."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.lake import lake_store, print_table, span_s, spark_session
from shinar.cli.support.output import Stopper, add_output, add_settings, emit, settings_of
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.pipeline.batch.journal import Manifest
    from shinar.pipeline.pipeline import Pipeline, Summary

EXAMPLES: Final = """examples:
  shinar pipeline run --from redis://localhost/orders --lake lake --once
  shinar pipeline run job.toml
  shinar pipeline run --archive bodies.jsonl --lake lake
  shinar pipeline status --lake lake
  shinar pipeline handlers --lake lake --retry --job orders --handlers shop.jobs:register
  shinar pipeline compact --lake lake
  shinar pipeline retention --lake lake --keep 90d --yes
job.toml holds the same names as the flags, and tables [routes], [options] and [spark]:
  from = "redis://localhost"
  queue = "orders"
  lake = "lake"
  handlers = "shop.jobs:register"     # called with the Pipeline before it starts
  [routes]
  "urn:babel:orders:*" = "orders"
"""

#: Names a job file may hold, and the type of each.
_JOB_NAMES: Final[dict[str, type]] = {
    "from": str,
    "from_env": str,
    "from_file": str,
    "archive": str,
    "queue": str,
    "lake": str,
    "job": str,
    "once": bool,
    "interval": str,
    "format": str,
    "max_records": int,
    "horizon": str,
    "registry": str,
    "typed": bool,
    "checkpoint": str,
    "handlers": str,
    "master": str,
    "routes": dict,
    "options": dict,
    "spark": dict,
}


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "pipeline",
        help="queues into tables on Spark",
        description="Read queues into tables, exactly once per message id.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(dest="step", metavar="run|status|handlers|compact|retention", required=True)
    _register_run(steps)
    for name, text, run_step in (
        ("status", "what is in the tables, and what is unfinished", run_status),
        ("handlers", "what handlers owe; tries it again with --retry", run_handlers),
        ("compact", "rewrite small files as few", run_compact),
        ("retention", "delete old rows, then files no table names", run_retention),
    ):
        step = steps.add_parser(name, help=text)
        add_settings(step, "lake")
        add_output(step)
        if name == "handlers":
            step.add_argument(
                "--retry", action="store_true", help="run the owed batches again, parked ones too"
            )
            step.add_argument("--job", help="name of the job that has the handlers")
            step.add_argument(
                "--handlers", metavar="MODULE:FUNCTION", help="called with the Pipeline, as by run"
            )
            step.add_argument("--master", help="Spark master (default local[*])")
        elif name != "status":
            step.add_argument("--table", action="append", default=[], help="only this table; may be repeated")
        if name == "retention":
            step.add_argument("--keep", required=True, help="how long rows stay, such as 90d or 12h")
            step.add_argument("--yes", action="store_true", help="really delete")
        step.set_defaults(run=run_step)


def _register_run(steps: Any) -> None:
    run = steps.add_parser(
        "run", help="run a job", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_argument("file", nargs="?", help="job.toml; flags win over it")
    run.add_argument("--from", dest="from", metavar="URL", help="broker URL (or SHINAR_URL)")
    run.add_argument("--from-env", metavar="NAME", help="environment variable that holds the URL")
    run.add_argument("--from-file", metavar="FILE", help="file that holds the URL")
    run.add_argument("--archive", metavar="PATH", help="read an archive of bodies instead of a queue")
    run.add_argument("--job", help="name of the job (default: the queue)")
    run.add_argument("--once", action="store_true", default=None, help="stop when the queue is drained")
    run.add_argument("--interval", help="pause between batches, such as '10 seconds'")
    run.add_argument("--format", choices=["delta", "parquet"], help="kind of tables (default delta)")
    run.add_argument("--max-records", type=int, help="messages a batch takes at most (default 100000)")
    run.add_argument(
        "--horizon", help="compare ids this far back: 30d, or all (default all with --once, else 7d)"
    )
    run.add_argument("--no-typed", dest="typed", action="store_false", default=None, help="no typed tables")
    run.add_argument("--checkpoint", help="folder of the stream's progress (default: inside the lake)")
    run.add_argument(
        "--handlers", metavar="MODULE:FUNCTION", help="called with the Pipeline before it starts"
    )
    run.add_argument("--master", help="Spark master (default local[*])")
    add_settings(run, "queue", "lake", "registry", "metrics_port")
    add_output(run)
    run.set_defaults(run=run_job)


def run_job(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    job = _job(args, settings)
    pipeline = _pipeline(job)
    counter = _Counter(args, job)
    pipeline.on_batch = counter
    stopper = Stopper(pipeline.stop, quiet=args.quiet)
    with stopper, _served(pipeline, settings["metrics_port"]):
        summary = pipeline.run(once=bool(job.get("once")), interval=job.get("interval"))
    counter.close()
    _tell(args, summary)
    if stopper.asked:
        return 130
    return 1 if summary.handler_failures else 0


@contextmanager
def _served(pipeline: Pipeline, port: int) -> Iterator[None]:
    """/metrics, /healthz and /readyz while the job runs; ready as long as its query lives."""
    if not port:
        yield
        return
    from shinar.clock import SYSTEM
    from shinar.worker.health import Endpoint, Health

    health = Health(SYSTEM)
    health.connected(True)
    pipeline.on_glance = lambda: health.polled(0)
    endpoint = Endpoint(pipeline.metrics, health, port=port)
    try:
        yield
    finally:
        endpoint.close()


def _job(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """The job as one dict: flag, then job file, then SHINAR_* and shinar.toml."""
    job = _file(args.file) if args.file else {}
    flags = {name: getattr(args, name, None) for name in _JOB_NAMES}
    job |= {name: value for name, value in flags.items() if value is not None}
    for name, setting in (("from", "url"), ("queue", "queue"), ("lake", "lake"), ("registry", "registry")):
        if name not in job and settings[setting] and not (name == "from" and _has_source(job)):
            job[name] = settings[setting]
    if not job.get("lake"):
        raise ConfigError("name a folder for the tables with --lake", setting="lake")
    if not _has_source(job):
        raise ConfigError("say what to read: --from URL, or --archive PATH", setting="from")
    return job


def _has_source(job: dict[str, Any]) -> bool:
    return any(name in job for name in ("from", "from_env", "from_file", "archive"))


def _file(path: str) -> dict[str, Any]:
    import difflib

    try:
        job = tomllib.loads(Path(path).read_text())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", setting=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not TOML: {exc}", setting=path) from None
    for name, value in job.items():
        if name not in _JOB_NAMES:
            near = difflib.get_close_matches(name, _JOB_NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_JOB_NAMES)}"
            raise ConfigError(f"there is no such name; {hint}", setting=name, origin=path)
        if type(value) is not _JOB_NAMES[name]:
            raise ConfigError(f"must be a {_JOB_NAMES[name].__name__}", setting=name, origin=path)
    return job


def _pipeline(job: dict[str, Any]) -> Pipeline:
    spark = spark_session(job.get("master"), job.get("spark"))
    from shinar.pipeline.pipeline import Pipeline

    given: dict[str, Any] = {
        "url": job.get("from"),
        "url_env": job.get("from_env"),
        "url_file": job.get("from_file"),
        "path": job.get("archive"),
        "queue": job.get("queue"),
        "job": job.get("job"),
        "checkpoint": job.get("checkpoint"),
        "table_format": job.get("format"),
        "max_records": job.get("max_records"),
        "options": {name: str(value) for name, value in job.get("options", {}).items()},
        "routes": job.get("routes"),
        "typed": job.get("typed"),
        "registry": job.get("registry"),
        "horizon_s": _horizon_s(job.get("horizon")),
    }
    pipeline = Pipeline(spark, lake=job["lake"], **{k: v for k, v in given.items() if v is not None})
    if job.get("handlers"):
        _load(job["handlers"])(pipeline)
    return pipeline


def _horizon_s(text: str | None) -> float | None:
    if not text:
        return None
    return float("inf") if text == "all" else span_s(text, "horizon")


def _load(name: str) -> Any:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function or "register")
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"cannot be loaded: {exc}; write module:function", setting="handlers") from None


class _Counter:
    """One line a batch on stderr: the balance, the rate and what is left in the queue."""

    def __init__(self, args: argparse.Namespace, job: dict[str, Any]) -> None:
        import time

        self._quiet = args.quiet
        self._now_s = time.monotonic
        self._last_s = self._now_s()
        self._job = job
        self._broker: Any = None

    def __call__(self, manifest: Manifest) -> None:
        now_s = self._now_s()
        rate = manifest.received / max(now_s - self._last_s, 1e-9)
        self._last_s = now_s
        if self._quiet:
            return
        parts = " + ".join(
            f"{manifest.rows(name):,} {name}" for name in ("messages", "quarantine", "duplicates")
        )
        lag = self._lag()
        left = f", {lag:,} left in the queue" if lag is not None else ""
        line = (
            f"batch {manifest.batch.number}: {manifest.received:,} received = {parts} ({rate:,.0f}/s{left})"
        )
        print(line, file=sys.stderr, flush=True)

    def _lag(self) -> int | None:
        """What the broker says is ready; None where it does not know or cannot be asked."""
        from shinar.brokers import connect, parse
        from shinar.errors import ShinarError

        if "from" not in self._job:
            return None
        try:
            if self._broker is None:
                self._broker = connect(parse(self._job["from"]))
            queues = (self._job.get("queue") or parse(self._job["from"]).queue).split(",")
            counts = [self._broker.depth(queue.strip()).ready for queue in queues]
        except ShinarError:
            return None
        return None if None in counts else sum(counts)

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()


def _tell(args: argparse.Namespace, summary: Summary) -> None:
    import msgspec

    if args.json:
        emit({**msgspec.to_builtins(summary), "balanced": summary.balanced})
        return
    print(f"{summary.batches} batches in {summary.took_s:.1f} s")
    columns = ("received", "messages", "quarantine", "duplicates", "dead_letters", "possible_redeliveries")
    rows = [
        [name or "(none)", *(f"{counts[c]:,}" for c in columns)] for name, counts in summary.queues.items()
    ]
    if len(rows) > 1:
        rows.append(["all", *(f"{getattr(summary, c):,}" for c in columns)])
    print_table(["queue", *columns], rows)
    print(f"received = messages + quarantine + duplicates: {'yes' if summary.balanced else 'NO'}")
    print_table(["table", "rows added"], [[name, f"{rows:,}"] for name, rows in summary.tables.items()])
    for failure in summary.handler_failures:
        print(f"handler failed: {failure}; its batch is kept and tried again")


def run_status(args: argparse.Namespace) -> int:
    store = lake_store(settings_of(args))
    import msgspec

    from shinar.pipeline.maintenance import status

    found = status(store)
    if args.json:
        emit({**msgspec.to_builtins(found), "balanced": found.balanced})
    else:
        rows = [[t.name, f"{t.rows:,}", f"{t.files:,}", f"{t.size_bytes / 1e6:,.1f}"] for t in found.tables]
        print_table(["table", "rows", "files", "MB"], rows)
        print(
            f"{found.batches:,} batches: {found.received:,} received = {found.messages:,} messages + "
            f"{found.quarantine:,} quarantine + {found.duplicates:,} duplicates: "
            f"{'yes' if found.balanced else 'NO'}"
        )
        if found.possible_redeliveries:
            print(f"possible redeliveries among them: {found.possible_redeliveries:,} (column redelivery)")
        if found.last_received_at:
            print(f"last message received at {found.last_received_at.isoformat(timespec='milliseconds')}")
        for name in found.unfinished:
            print(f"unfinished: batch {name}; the next run of its job commits it")
        for text in found.owed:
            print(f"owed by handler {text}")
    return 0 if found.balanced and not found.owed else 1


def run_handlers(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    store = lake_store(settings)
    if args.retry:
        for name in ("job", "handlers"):
            if not getattr(args, name):
                raise ConfigError("is needed to run handlers again, as `pipeline run` has it", setting=name)
        job = {"lake": settings["lake"], "job": args.job, "handlers": args.handlers, "master": args.master}
        _pipeline(job).retry_handlers()
    from shinar.pipeline.maintenance import owed

    found = owed(store)
    if args.json:
        emit({"owed": found})
    else:
        print("\n".join(f"owed by handler {text}" for text in found) or "no handler owes anything")
    return 1 if found else 0


def run_compact(args: argparse.Namespace) -> int:
    store = lake_store(settings_of(args))
    import msgspec

    from shinar.pipeline.maintenance import compact

    done = compact(store, tuple(args.table))
    if args.json:
        for table in done:
            emit(msgspec.to_builtins(table))
    else:
        print_table(
            ["table", "files before", "after"],
            [[table.table, str(table.files_before), str(table.files_after)] for table in done],
        )
    return 0


def run_retention(args: argparse.Namespace) -> int:
    store = lake_store(settings_of(args))
    keep = timedelta(seconds=span_s(args.keep, "keep"))
    from shinar.pipeline.maintenance import retention, vacuum

    if not args.yes:
        raise ConfigError(f"this deletes rows older than {args.keep}; add --yes", setting="--yes")
    gone = retention(store, keep, tuple(args.table))
    files = vacuum(store)
    if args.json:
        emit({"rows": gone, "files": files})
    else:
        print_table(["table", "rows deleted"], [[name, f"{rows:,}"] for name, rows in gone.items()])
        print(f"{files} unnamed files removed")
    return 0
