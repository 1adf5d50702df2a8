"""`Pipeline`: a queue (or an archive) into tables, batch by batch, exactly once.

This is where the stream, the line of a batch, the journal and the handlers meet; each of them is on its own
elsewhere. Runs on a session it is given and never starts one.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as F

from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, ShinarError, Unsupported
from shinar.observe import Metrics
from shinar.pipeline.batch.journal import BatchId, Journal, Manifest, alone, sweep_stages, unfinished
from shinar.pipeline.batch.processor import STREAM_HORIZON_S, Line, PutDown, Rules
from shinar.pipeline.batch.route import Routes
from shinar.pipeline.config import Settings, address, epoch_of, job_name, same_broker
from shinar.pipeline.handlers import Handler, Pending, Runner, Transform, make
from shinar.pipeline.lake.store import STATE_DIR, Store, open_store, quoted, read
from shinar.pipeline.metrics import Figures
from shinar.pipeline.session import register
from shinar.pipeline.source.archive import parquet_files
from shinar.pipeline.spark_errors import plainly
from shinar.pipeline.typed.json_schema import load_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
#: How long the waiting thread sleeps between looks at the stop flag.
_GLANCE_S: Final = 1


class Summary(msgspec.Struct, frozen=True):
    """What a run did. `balanced` is part of it because a run that is not never gets here."""

    batches: int = 0
    received: int = 0
    messages: int = 0
    quarantine: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    possible_redeliveries: int = 0
    #: Rows added per table, typed and handled tables included.
    tables: dict[str, int] = {}
    queues: dict[str, dict[str, int]] = {}
    handler_failures: tuple[str, ...] = ()
    took_s: float = 0.0

    @property
    def balanced(self) -> bool:
        return self.received == self.messages + self.quarantine + self.duplicates


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
        settings: Settings | None = None,
        rules: Rules | None = None,
        clock: Clock = SYSTEM,
        metrics: Metrics | None = None,
        **given: Any,
    ) -> None:
        chosen = _settings(settings or Settings(), rules or Rules(), given)
        self._spark = spark
        self._settings, self._rules = chosen
        self._clock = clock
        self._store = open_store(lake, self._settings.table_format)
        self.job = self._settings.job or job_name(self._settings)
        if not _JOB.fullmatch(self.job):
            raise ConfigError("letters, digits, _ and . only", setting="job")
        if self._settings.max_records < 1:
            raise ConfigError("must be at least 1", setting="max_records")
        # Found wrong now, and not when the queue's first messages are in hand.
        Routes(self._rules.routes)
        if self._rules.registry:
            load_registry(self._rules.registry)
        self.metrics = metrics or Metrics()
        self._figures = Figures(self.metrics, self.job)
        self._handlers: list[Handler] = []
        self._stopping = threading.Event()
        self._in_hand = threading.Event()
        #: What ended the stream, if it was ours: Spark hands on no more than its text.
        self._failure: ShinarError | None = None
        self._totals = _Totals()
        #: Called after every batch, on the driver.
        self.on_batch: Callable[[Manifest], None] | None = None
        #: Called about once a second while `run` waits and the query lives.
        self.on_glance: Callable[[], None] | None = None

    @property
    def store(self) -> Store:
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

    def run(self, *, once: bool = False, interval: str | None = None) -> Summary:
        """Read until the queue is drained (`once`) or until `stop`. Returns what was done."""
        if self._settings.path:
            with plainly():
                return self.process(self._archive())
        started_s = self._clock.monotonic_s()
        self._totals = _Totals()
        query = self.start(once=once, interval=interval)
        try:
            self._wait(query)
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
        checkpoint = self._checkpoint()
        with plainly():
            source = self._source()
        epoch = epoch_of(checkpoint)
        same_broker(self._settings, checkpoint)
        self._recover()
        sweep_stages(self._store, self.job)
        rules = self._rules
        if not once and rules.horizon_s is None:
            rules = msgspec.structs.replace(rules, horizon_s=STREAM_HORIZON_S)

        def one_batch(rows: DataFrame, number: int) -> None:
            if self._stopping.is_set():
                raise _Stopping
            self._in_hand.set()
            try:
                self._step(rows, BatchId(self.job, epoch, int(number)), rules)
            except ShinarError as exc:
                self._failure = exc
                raise
            finally:
                self._in_hand.clear()

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

    def process(self, rows: DataFrame, batch: BatchId | None = None) -> Summary:
        """One batch from a DataFrame of judged rows: an archive, or a test."""
        started_s = self._clock.monotonic_s()
        self._totals = _Totals()
        self._recover()
        self._step(rows, batch or BatchId(self.job, uuid.uuid4().hex, 0), self._rules)
        return self._totals.summary(self._clock.monotonic_s() - started_s)

    def stop(self) -> None:
        """Finish the batch in hand, then end `run`. May be called from a signal handler."""
        self._stopping.set()

    def retry_handlers(self) -> list[Pending]:
        return self._runner().retry(self._spark)

    def _step(self, rows: DataFrame, batch: BatchId, rules: Rules) -> None:
        session = rows.sparkSession
        journal = Journal(self._store, batch.job, batch.epoch)
        manifest = journal.done_batch(batch.number)
        if manifest is None:
            line = Line(session, self._store, rules, self._clock)
            if journal.open_batch(batch.number) is not None:
                manifest = self._commit(journal, batch, None, line)
            else:
                with line.put_down(rows, batch) as found:
                    manifest = self._commit(journal, batch, found, line) if found.spooled else None
            if manifest is None:
                return
        self._handle(session, manifest)
        if self.on_batch is not None:
            self.on_batch(manifest)

    def _commit(self, journal: Journal, batch: BatchId, found: PutDown | None, line: Line) -> Manifest | None:
        """The batch as it was decided before, or else now; None when it is neither decided nor read."""
        with alone(self._store):
            manifest = journal.done_batch(batch.number)
            if manifest is not None:
                return manifest
            manifest = journal.open_batch(batch.number)
            if manifest is None:
                if found is None:
                    return None
                manifest = journal.record(line.decide(found))
            self._runner().owe(manifest)
            journal.carry_out(manifest)
        self._totals.add(manifest)
        self._figures.batch(manifest)
        return manifest

    def _handle(self, session: SparkSession, manifest: Manifest) -> None:
        failed = self._runner().after(session, manifest)
        self._totals.failures += [f"{p.batch.name}: {p.error}" for p in failed]
        self._figures.failures(len(failed))

    def _recover(self) -> None:
        """Finish what an earlier run had decided but not committed everywhere."""
        with alone(self._store):
            finished = unfinished(self._store, self.job)
            for journal, manifest in finished:
                self._runner().owe(manifest)
                journal.carry_out(manifest)
                self._totals.add(manifest)
        for _, manifest in finished:
            # A stream asks for its batch again, an archive does not.
            self._handle(self._spark, manifest)

    def _runner(self) -> Runner:
        return Runner(self._store, self.job, self._handlers, self._clock)

    def _source(self) -> DataFrame:
        register(self._spark)
        settings = self._settings
        options = {
            **address(self._spark, settings),
            "maxRecordsPerTrigger": str(settings.max_records),
            "landing": str(self._store.root / STATE_DIR / "landing"),
            "streamId": self.job,
            **settings.options,
        }
        if settings.queue:
            options["queue"] = settings.queue
        return self._spark.readStream.format("shinar").options(**options).load()

    def _archive(self) -> DataFrame:
        """Judged rows; or raw ones, where Spark reads the files as well: the first pass judges those."""
        register(self._spark)
        path, options = str(self._settings.path), self._settings.options
        plain = options.keys() <= {"archiveFormat"}
        if plain and (files := parquet_files(path, options.get("archiveFormat", ""))):
            # By name: of a folder, Spark would leave out what lies in folders below.
            reader = self._spark.read.option("mergeSchema", "true")
            return _with_positions(reader.parquet(*map(quoted, files)))
        return self._spark.read.format("shinar").options(path=path, **options).load()

    def _checkpoint(self) -> Path:
        given = self._settings.checkpoint
        return Path(given) if given else self._store.root / STATE_DIR / "checkpoints" / self.job

    def _wait(self, query: StreamingQuery) -> None:
        from pyspark.errors import StreamingQueryException

        try:
            while not query.awaitTermination(_GLANCE_S):
                self._glance(query)
                if self._stopping.is_set() and not self._in_hand.is_set():
                    query.stop()
        except StreamingQueryException as exc:
            if not (self._stopping.is_set() and _Stopping.__name__ in str(exc)):
                if self._failure is not None:
                    raise self._failure from None
                with plainly():
                    raise
        self._glance(query)

    def _glance(self, query: StreamingQuery) -> None:
        self._figures.progress(query.lastProgress)
        if self.on_glance is not None:
            self.on_glance()


def _every(writer: DataStreamWriter, interval: str) -> DataStreamWriter:
    from pyspark.errors import PySparkException

    try:
        return writer.trigger(processingTime=interval)
    except (PySparkException, ValueError):
        raise ConfigError(
            f"{interval!r} is no pause between batches; write '10 seconds' or '5 minutes'", setting="interval"
        ) from None


def _with_positions(archive: DataFrame) -> DataFrame:
    """File and row, as our own reader of archives has them, where the archive does not say better."""
    if "body" not in archive.columns:
        raise ConfigError(f"has no column body; it has {', '.join(archive.columns)}", setting="path")
    file = F.regexp_replace("_metadata.file_path", "^file:(//)?", "")
    place = F.concat_ws("#", file, "_metadata.row_index")
    given = [F.col("position")] if "position" in archive.columns else []
    return archive.withColumn("position", F.coalesce(*given, place))


class _Totals:
    def __init__(self) -> None:
        self.batches = 0
        self.rows: Counter[str] = Counter()
        self.queues: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def add(self, manifest: Manifest) -> None:
        self.batches += 1
        for commit in manifest.commits:
            self.rows[commit.table] += commit.rows
        for balance in manifest.balances:
            counts = msgspec.structs.asdict(balance)
            self.queues.setdefault(counts.pop("queue"), Counter()).update(counts)

    def summary(self, took_s: float) -> Summary:
        return Summary(
            batches=self.batches,
            received=sum(queue["received"] for queue in self.queues.values()),
            messages=self.rows["messages"],
            quarantine=self.rows["quarantine"],
            duplicates=self.rows["duplicates"],
            dead_letters=self.rows["dead_letters"],
            possible_redeliveries=sum(queue["possible_redeliveries"] for queue in self.queues.values()),
            tables=dict(sorted(self.rows.items())),
            queues={name: dict(counts) for name, counts in sorted(self.queues.items())},
            handler_failures=tuple(self.failures),
            took_s=took_s,
        )


def _settings(settings: Settings, rules: Rules, given: Mapping[str, Any]) -> tuple[Settings, Rules]:
    """Keyword arguments go to whichever of the two has a field of that name."""
    for name in given:
        if name not in Settings.__struct_fields__ and name not in Rules.__struct_fields__:
            known = ", ".join(sorted({*Settings.__struct_fields__, *Rules.__struct_fields__}))
            raise ConfigError(f"is no setting of a pipeline; there are {known}", setting=name)
    mine = {name: value for name, value in given.items() if name in Settings.__struct_fields__}
    theirs = {name: value for name, value in given.items() if name in Rules.__struct_fields__}
    return msgspec.structs.replace(settings, **mine), msgspec.structs.replace(rules, **theirs)
