"""`shinar pipeline`: run a job into a lake, and look after the lake. Spark is imported only to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.job import config_of, handlers_of, job_of
from shinar.cli.support.lake import add_spark, lake_store, one_sentence, print_table, span_s, spark_session
from shinar.cli.support.output import Stopper, add_output, add_settings, emit, settings_of
from shinar.clock import SYSTEM
from shinar.errors import ConfigError
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.brokers.contract import Broker
    from shinar.observe import Metrics
    from shinar.pipeline.batch.journal import Manifest
    from shinar.pipeline.config import PipelineConfig
    from shinar.pipeline.maintenance import LakeStatus
    from shinar.pipeline.run_summary import RunSummary

EXAMPLES: Final = """examples:
  shinar pipeline run --from redis://localhost/orders --lake lake --once
  shinar pipeline run job.toml
  shinar pipeline run --archive bodies.jsonl --lake lake
  shinar pipeline status --lake lake
  shinar pipeline handlers --lake lake --retry --job orders --handlers shop.jobs:register
  shinar pipeline compact --lake lake
  shinar pipeline retention --lake lake --keep 90d --yes
job.toml has the same names as the flags, and tables [routes], [options] and [spark]:
  from = "redis://localhost"
  queue = "orders"
  lake = "lake"
  handlers = "shop.jobs:register"     # called with the Pipeline before it starts
  [routes]
  "urn:babel:orders:*" = "orders"
"""


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
        ("handlers", "batches pending for handlers; run again with --retry", run_handlers),
        ("compact", "rewrite small files as few", run_compact),
        ("retention", "delete old rows, then files no table names", run_retention),
    ):
        step = steps.add_parser(name, help=text)
        add_settings(step, "lake")
        add_output(step)
        if name == "handlers":
            step.add_argument(
                "--retry", action="store_true", help="run the pending batches again, parked ones too"
            )
            step.add_argument("--job", help="name of the job that has the handlers")
            step.add_argument(
                "--handlers", metavar="MODULE:FUNCTION", help="called with the Pipeline, as by run"
            )
            add_spark(step)
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
    run.add_argument("--from-env", metavar="NAME", help="environment variable that has the URL")
    run.add_argument("--from-file", metavar="FILE", help="file that has the URL")
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
        "--after-restore",
        choices=["fail", "replay", "accept"],
        help="when lake and checkpoint are of different times: stop (default), read again what the broker "
        "still has, or go on without the missing messages",
    )
    run.add_argument(
        "--handlers", metavar="MODULE:FUNCTION", help="called with the Pipeline before it starts"
    )
    add_spark(run)
    add_settings(run, "queue", "lake", "registry", "metrics_port")
    add_output(run)
    run.set_defaults(run=run_job)


def run_job(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    job = job_of(args, settings)
    config, add_handlers = config_of(job), handlers_of(job)
    config.check_source()
    progress = _JobProgress(args.quiet, config)
    progress.show("starting Spark")
    try:
        # Before the signal handlers: Spark installs one of its own.
        spark = spark_session(job.get("master"), job.get("spark"), debug=args.debug)
        from shinar.observe import Metrics
        from shinar.pipeline.pipeline import Pipeline

        metrics = Metrics()
        with _served(metrics, settings["metrics_port"]) as alive:
            pipeline = Pipeline(
                spark,
                lake=job["lake"],
                config=config,
                metrics=metrics,
                on_batch=progress.batch,
                on_wait=lambda: progress.wait(alive),
            )
            add_handlers(pipeline)
            stopper = Stopper(pipeline.stop, quiet=args.quiet)
            with stopper, one_sentence(args.debug):
                summary = pipeline.run(once=bool(job.get("once")), interval=job.get("interval"))
    finally:
        progress.close()
    _tell(args, summary)
    if stopper.asked:
        return 130
    return 1 if summary.handler_failures else 0


@contextmanager
def _served(metrics: Metrics, port: int) -> Iterator[Callable[[], None]]:
    """/metrics, /healthz and /readyz while the job runs; ready as long as the function it gives is called."""
    if not port:
        yield lambda: None
        return
    from shinar.clock import SYSTEM
    from shinar.worker.health import Endpoint, Health

    health = Health(SYSTEM)
    health.connected(True)
    endpoint = Endpoint(metrics, health, port=port)
    try:
        yield lambda: health.polled(0)
    finally:
        endpoint.close()


class _JobProgress:
    """On stderr: a line for every batch with its balance, its rate and what is left in the queue; on a
    terminal also what the job is doing meanwhile."""

    def __init__(self, quiet: bool, config: PipelineConfig) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        self._last_s = self._shown_s = SYSTEM.monotonic_s()
        self._config = config
        self._broker: Broker | None = None
        self._wrote = False

    def show(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text} …")
            sys.stderr.flush()
            self._wrote = True

    def wait(self, alive: Callable[[], None]) -> None:
        alive()
        self.show(f"reading; last batch {SYSTEM.monotonic_s() - self._last_s:,.0f} s ago")

    def batch(self, manifest: Manifest) -> None:
        now_s = SYSTEM.monotonic_s()
        rate = manifest.received / max(now_s - self._last_s, 1e-9)
        self._last_s = now_s
        if self._quiet:
            return
        parts = " + ".join(
            f"{manifest.rows(name):,} {name}" for name in ("messages", "quarantine", "duplicates")
        )
        rejected = manifest.rows("typed_rejects")
        beside = f", {rejected:,} typed rows rejected" if rejected else ""
        left = self._left()
        queued = f", {left:,} left in the queue" if left is not None else ""
        self._clear()
        print(
            f"batch {manifest.batch.number}: {manifest.received:,} received = {parts}{beside} "
            f"({rate:,.0f}/s{queued})",
            file=sys.stderr,
            flush=True,
        )

    def _left(self) -> int | None:
        """What the broker says is ready; None where it does not know or cannot be asked."""
        from shinar.brokers import connect, parse
        from shinar.errors import ShinarError

        if not self._config.url:
            return None
        try:
            url = parse(self._config.url)
            self._broker = self._broker or connect(url)
            queues = (self._config.queue or url.queue).split(",")
            counts = [self._broker.depth(queue.strip()).ready for queue in queues]
        except ShinarError:
            return None
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _clear(self) -> None:
        if self._wrote:
            sys.stderr.write("\r\x1b[K")
            self._wrote = False

    def close(self) -> None:
        self._clear()
        if self._broker is not None:
            self._broker.close()


def _tell(args: argparse.Namespace, summary: RunSummary) -> None:
    import msgspec

    if args.json:
        emit({**msgspec.to_builtins(summary), "balanced": summary.balanced})
        return
    batches = "1 batch" if summary.batches == 1 else f"{summary.batches:,} batches"
    print(f"{batches} in {summary.took_s:.1f} s")
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
        print(f"handler {printable(failure)}; the batch is kept and tried again")


def run_status(args: argparse.Namespace) -> int:
    store = lake_store(settings_of(args))
    import msgspec

    from shinar.pipeline.maintenance import status

    found = status(store)
    if args.json:
        emit({**msgspec.to_builtins(found), "balanced": found.balanced})
    else:
        rows = [
            [t.name, f"{t.rows:,}", f"{t.files:,}", f"{t.size_bytes / 1e6:,.1f}", f"{t.extra_rows:,}"]
            for t in found.tables
        ]
        print_table(["table", "rows", "files", "MB", "rows with _extra"], rows)
        print(
            f"{found.batches:,} batches: {found.received:,} received = {found.messages:,} messages + "
            f"{found.quarantine:,} quarantine + {found.duplicates:,} duplicates: "
            f"{'yes' if found.balanced else 'NO'}"
        )
        if found.possible_redeliveries:
            print(f"possible redeliveries among them: {found.possible_redeliveries:,} (column redelivery)")
        if found.last_received_at:
            print(f"last message received at {found.last_received_at.isoformat(timespec='milliseconds')}")
        _tell_open(found)
    return 0 if found.balanced and not found.pending and not found.captured else 1


def _tell_open(found: LakeStatus) -> None:
    for batch in found.captured:
        told = "messages" if batch.rows is None else f"{batch.rows:,} messages"
        print(
            f"captured and not in the tables: {told} of batch {batch.number} of job {printable(batch.job)}; "
            "run the job again, and mend what stopped it"
        )
    for name in found.unfinished:
        print(f"decided and not committed to every table: batch {name}; the next run of its job commits it")
    for text in found.pending:
        print(f"pending for handler {printable(text)}")


def run_handlers(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    store = lake_store(settings)
    if args.retry:
        for name in ("job", "handlers"):
            if not getattr(args, name):
                raise ConfigError("is needed to run handlers again, as `pipeline run` has it", setting=name)
        job = {"lake": settings["lake"], "job": args.job, "handlers": args.handlers, "master": args.master}
        _retry(job, debug=args.debug)
    from shinar.pipeline.maintenance import pending_batches

    found = pending_batches(store)
    if args.json:
        emit({"pending": found, "owed": found})  # the former name
    else:
        told = [f"pending for handler {printable(text)}" for text in found]
        print("\n".join(told) or "no batch is pending for a handler")
    return 1 if found else 0


def _retry(job: dict[str, Any], *, debug: bool) -> None:
    config, add_handlers = config_of(job), handlers_of(job)
    spark = spark_session(job.get("master"), debug=debug)
    from shinar.pipeline.pipeline import Pipeline

    pipeline = Pipeline(spark, lake=job["lake"], config=config)
    add_handlers(pipeline)
    with one_sentence(debug):
        pipeline.retry_handlers()


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
