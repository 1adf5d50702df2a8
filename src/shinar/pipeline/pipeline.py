"""`Pipeline`: a queue (or an archive) into tables, batch by batch, exactly once.

Puts the stream, the batch processor, the journal and the handlers together; each of them is on its own
elsewhere. Runs on a session it is given and never starts one.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, RestoredLake, ShinarError, Unsupported
from shinar.observe import Metrics
from shinar.pipeline.batch.journal import BatchId, Journal, Manifest, alone, sweep_stages, unfinished
from shinar.pipeline.batch.processor import STREAM_HORIZON_S, BatchProcessor, BatchRules, StagedBatch
from shinar.pipeline.checkpoint import (
    AfterRestore,
    check_batch,
    check_lake,
    checkpoint_dir,
    epoch_of,
    new_epoch,
    planned_offsets,
    remember_committed,
    same_broker,
)
from shinar.pipeline.config import PipelineConfig, address
from shinar.pipeline.handlers import Handler, HandlerRunner, Pending, Transform, make
from shinar.pipeline.lake.store import STATE_DIR, Format, TableStore, open_store, quoted, read
from shinar.pipeline.metrics import PipelineMetrics
from shinar.pipeline.run_summary import RunSummary, RunTotals
from shinar.pipeline.session import register
from shinar.pipeline.source.archive import parquet_files
from shinar.pipeline.spark_errors import as_our_errors, worker_did_not_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log: Final = logging.getLogger("shinar.pipeline")

#: Spark gives a Python process of a source ten seconds to start, which no setting changes: on a busy machine
#: that is too short, and starting the stream again loses nothing.
WORKER_START_TRIES: Final = 5
#: How long the waiting thread sleeps between looks at the stop flag.
_WAIT_S: Final = 1


def _nothing(*_: object) -> None:
    """The callback of who wants none."""


class _Stopping(Exception):
    """Ends the stream between two batches; never leaves this module."""


class Pipeline:
    """
    pipeline = Pipeline(spark, url="redis://localhost", queue="orders", lake="lake")

    @pipeline.handler("urn:babel:orders:created")
    def totals(orders):
        return orders.groupBy("lang").count()

    print(pipeline.run(once=True))
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        lake: str,
        config: PipelineConfig | None = None,
        url: str | None = None,
        url_env: str | None = None,
        url_file: str | None = None,
        path: str | None = None,
        queue: str | None = None,
        job: str | None = None,
        checkpoint: str | None = None,
        table_format: Format | None = None,
        max_records: int | None = None,
        options: Mapping[str, str] | None = None,
        routes: Mapping[str, str] | None = None,
        typed: bool | None = None,
        registry: str | None = None,
        horizon_s: float | None = None,
        after_restore: AfterRestore | None = None,
        clock: Clock = SYSTEM,
        metrics: Metrics | None = None,
        on_batch: Callable[[Manifest], None] = _nothing,
        on_wait: Callable[[], None] = _nothing,
    ) -> None:
        """A keyword wins over the same field of `config`. `on_batch` is called on the driver after every
        batch, `on_wait` about once a second while `run` waits and the query lives."""
        given = locals()
        fields = {name: given[name] for name in PipelineConfig.__struct_fields__ if given[name] is not None}
        self._config = msgspec.structs.replace(config or PipelineConfig(), **fields)
        self._config.check()
        self._spark = spark
        self._clock = clock
        self._store = open_store(lake, self._config.table_format)
        self.job = self._config.job_name
        self.metrics = metrics or Metrics()
        self._job_metrics = PipelineMetrics(self.metrics, self.job)
        self._handlers: list[Handler] = []
        self._stopping = threading.Event()
        self._in_batch = threading.Event()
        #: What ended the stream, if it was ours: Spark hands on no more than its text.
        self._failure: ShinarError | None = None
        self._totals = RunTotals()
        self._on_batch = on_batch
        self._on_wait = on_wait

    @property
    def store(self) -> TableStore:
        return self._store

    def handler(self, *patterns: str, name: str | None = None) -> Callable[[Transform], Transform]:
        """Register a DataFrame -> DataFrame function for URNs (exact, `prefix*` or `*`)."""
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise ConfigError(
                'takes URNs: write @pipeline.handler("*") above the function', setting="handler"
            )

        def register(transform: Transform) -> Transform:
            label = name or str(getattr(transform, "__name__", ""))
            if any(handler.name == label for handler in self._handlers):
                raise ConfigError("is registered twice; give one of them a name=", setting=f"handler {label}")
            self._handlers.append(make(label, patterns or ("*",), transform))
            return transform

        return register

    def table(self, name: str) -> DataFrame:
        return read(self._spark, self._store, name)

    def run(self, *, once: bool = False, interval: str | None = None) -> RunSummary:
        """Read until the queue is drained (`once`) or until `stop`. Returns what was done."""
        self._config.check_source()
        if self._config.path:
            with as_our_errors():
                return self.process(self._archive())
        started_s = self._clock.monotonic_s()
        self._totals = RunTotals()
        for left in reversed(range(WORKER_START_TRIES)):
            query = self.start(once=once, interval=interval)
            try:
                self._wait(query)
                break
            except StreamingQueryException as exc:
                if not left or not worker_did_not_start(exc):
                    raise
                log.warning("a Python worker of Spark did not start in time; the stream is started again")
            finally:
                if query.isActive:
                    query.stop()
        return self._totals.summary(self._clock.monotonic_s() - started_s)

    def start(self, *, once: bool = False, interval: str | None = None) -> StreamingQuery:
        """The stream as Spark's own query object, for programs that have other things to do."""
        if type(self._spark).__module__.startswith("pyspark.sql.connect"):
            raise Unsupported(
                "Spark Connect",
                "carry the job's own steps, which belong beside the driver",
                "run it with a classic session (shinar pipeline run --master ...); format('shinar') itself "
                "works over Connect",
            )
        self._stopping.clear()
        self._failure = None
        checkpoint = checkpoint_dir(self._store, self._config, self.job)
        check_lake(self._store, checkpoint, self.job, self._config.after_restore)
        with as_our_errors():
            source = self._source()
        same_broker(self._config, checkpoint)
        self._recover()
        sweep_stages(self._store, self.job)
        rules = self._config.rules()
        if not once and rules.horizon_s is None:
            rules = msgspec.structs.replace(rules, horizon_s=STREAM_HORIZON_S)

        def one_batch(rows: DataFrame, number: int) -> None:
            if self._stopping.is_set():
                raise _Stopping
            self._in_batch.set()
            try:
                self._stream_step(rows, int(number), rules, checkpoint)
            except ShinarError as exc:
                self._failure = exc
                raise
            finally:
                self._in_batch.clear()

        writer = (
            source.writeStream.queryName(f"shinar-{self.job}")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(one_batch)
        )
        if once:
            writer = writer.trigger(availableNow=True)
        elif interval:
            writer = _every(writer, interval)
        return writer.start()

    def process(self, rows: DataFrame, batch: BatchId | None = None) -> RunSummary:
        """One batch from a DataFrame of judged rows: an archive, or a test."""
        started_s = self._clock.monotonic_s()
        self._totals = RunTotals()
        self._recover()
        self._step(rows, batch or BatchId(self.job, uuid.uuid4().hex, 0), self._config.rules())
        return self._totals.summary(self._clock.monotonic_s() - started_s)

    def stop(self) -> None:
        """Finish the current batch, then end `run`. May be called from a signal handler."""
        self._stopping.set()

    def retry_handlers(self) -> list[Pending]:
        return self._runner().retry(self._spark)

    def _stream_step(self, rows: DataFrame, number: int, rules: BatchRules, checkpoint: Path) -> None:
        batch = BatchId(self.job, epoch_of(checkpoint), number)
        planned = planned_offsets(checkpoint, number)
        done = Journal(self._store, batch.job, batch.epoch).known_offsets(number)
        try:
            check_batch(self._store, batch, planned, done)
        except RestoredLake:
            if self._config.after_restore == "fail":
                raise
            new_epoch(checkpoint)
            batch = BatchId(self.job, epoch_of(checkpoint), number)
        if self._step(rows, batch, rules, planned):
            remember_committed(checkpoint, batch)

    def _step(self, rows: DataFrame, batch: BatchId, rules: BatchRules, offsets: str = "") -> bool:
        """Commit the batch, then run the handlers over it. False: there was nothing in it."""
        session = rows.sparkSession
        journal = Journal(self._store, batch.job, batch.epoch)
        manifest = journal.done_batch(batch.number)
        if manifest is None:
            processor = BatchProcessor(session, self._store, rules, self._clock)
            if journal.open_batch(batch.number) is not None:
                manifest = self._commit(journal, batch, None, processor)
            else:
                with processor.staged(rows, batch, offsets) as found:
                    manifest = self._commit(journal, batch, found, processor) if found.files else None
            if manifest is None:
                return False
        self._handle(session, manifest)
        self._on_batch(manifest)
        return True

    def _commit(
        self, journal: Journal, batch: BatchId, found: StagedBatch | None, processor: BatchProcessor
    ) -> Manifest | None:
        """The batch as it was decided before, or else now; None when it is neither decided nor read."""
        with alone(self._store):
            manifest = journal.done_batch(batch.number)
            if manifest is not None:
                return manifest
            manifest = journal.open_batch(batch.number)
            if manifest is None:
                if found is None:
                    return None
                manifest = journal.record(processor.decide(found))
            self._runner().add_pending(manifest)
            journal.carry_out(manifest)
        self._totals.add(manifest)
        self._job_metrics.batch(manifest)
        return manifest

    def _handle(self, session: SparkSession, manifest: Manifest) -> None:
        failed = self._runner().after(session, manifest)
        self._totals.failures += [f"{p.handler}, batch {p.batch.name}: {p.error}" for p in failed]
        self._job_metrics.failures(len(failed))

    def _recover(self) -> None:
        """Finish what an earlier run had decided but not committed everywhere."""
        with alone(self._store):
            finished = unfinished(self._store, self.job)
            for journal, manifest in finished:
                self._runner().add_pending(manifest)
                journal.carry_out(manifest)
                self._totals.add(manifest)
        for _, manifest in finished:
            # A stream asks for its batch again, an archive does not.
            self._handle(self._spark, manifest)

    def _runner(self) -> HandlerRunner:
        return HandlerRunner(self._store, self.job, self._handlers, self._clock)

    def _source(self) -> DataFrame:
        register(self._spark)
        config = self._config
        options = {
            **address(self._spark, config),
            "maxRecordsPerTrigger": str(config.max_records),
            "landing": str(self._store.root / STATE_DIR / "landing"),
            "streamId": self.job,
            **config.options,
        }
        if config.queue:
            options["queue"] = config.queue
        return self._spark.readStream.format("shinar").options(**options).load()

    def _archive(self) -> DataFrame:
        """Judged rows; or raw ones, where Spark reads the files as well: the first pass judges those."""
        register(self._spark)
        path, options = str(self._config.path), self._config.options
        plain = options.keys() <= {"archiveFormat"}
        if plain and (files := parquet_files(path, options.get("archiveFormat", ""))):
            # By name: of a folder, Spark would leave out what lies in folders below.
            reader = self._spark.read.option("mergeSchema", "true")
            return _with_positions(reader.parquet(*map(quoted, files)))
        return self._spark.read.format("shinar").options(path=path, **options).load()

    def _wait(self, query: StreamingQuery) -> None:
        try:
            while not query.awaitTermination(_WAIT_S):
                self._progress(query)
                if self._stopping.is_set() and not self._in_batch.is_set():
                    query.stop()
        except StreamingQueryException as exc:
            if not (self._stopping.is_set() and _Stopping.__name__ in str(exc)):
                if self._failure is not None:
                    raise self._failure from None
                with as_our_errors():
                    raise
        self._progress(query)

    def _progress(self, query: StreamingQuery) -> None:
        self._job_metrics.progress(query.lastProgress)
        self._on_wait()


def _every(writer: DataStreamWriter, interval: str) -> DataStreamWriter:
    from pyspark.errors import PySparkException

    try:
        return writer.trigger(processingTime=interval)
    except (PySparkException, ValueError):
        raise ConfigError(
            f"{interval!r} is not an interval; write '10 seconds' or '5 minutes'", setting="interval"
        ) from None


def _with_positions(archive: DataFrame) -> DataFrame:
    """File and row, as our own reader of archives has them, where the archive does not say better."""
    if "body" not in archive.columns:
        raise ConfigError(f"has no column body; it has {', '.join(archive.columns)}", setting="path")
    file = F.regexp_replace("_metadata.file_path", "^file:(//)?", "")
    row = F.concat_ws("#", file, "_metadata.row_index")
    given = [F.col("position")] if "position" in archive.columns else []
    return archive.withColumn("position", F.coalesce(*given, row))
