"""What a user may say to `format("shinar")`, checked once, as frozen values. Must not know Spark.

A URL may hold a password, and Spark carries options as plain text. So a URL with a secret is given by
reference: `urlEnv` names an environment variable, `urlFile` a file, and whoever connects looks it up.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from shinar.brokers.contract import Broker
from shinar.brokers.registry import connect, known_options, parse, receipt_type, traits
from shinar.brokers.url import SECRET_OPTIONS, BrokerUrl
from shinar.errors import ConfigError
from shinar.settlement.traits import Traits

AckMode = Literal["after-capture", "never"]
#: What an earlier version called "after-capture".
_FORMER_ACK_MODE: Final = "after-freeze"

#: Every option, as it is spelt in the docs; Spark hands them over in lower case.
READ_OPTIONS: Final = (
    "url", "urlEnv", "urlFile", "queue", "path", "archiveFormat", "minPartitions", "includeHeaders", "limit",
)  # fmt: skip
STREAM_OPTIONS: Final = (
    "url", "urlEnv", "urlFile", "queue", "landing", "streamId", "startingOffsets", "maxRecordsPerTrigger",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders",
    "ackMode", "keepSegments",
)  # fmt: skip
LOG_OPTIONS: Final = (
    "path",
    "queue",
    "startingOffsets",
    "maxRecordsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
)
WRITE_OPTIONS: Final = (
    "url",
    "urlEnv",
    "urlFile",
    "queue",
    "jobId",
    "batchSize",
    "lang",
    "checkpointLocation",
)

#: Rows a micro-batch may take unless the user says otherwise: some seconds of work, tens of megabytes.
DEFAULT_RECORDS: Final = 100_000
#: Bytes of bodies a micro-batch of a queue may take: the tasks hold them until they are acknowledged.
DEFAULT_BYTES: Final = 512 << 20
#: Rows per confirmed publish of the sink.
DEFAULT_WRITE_BATCH: Final = 1_000
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?", re.I)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
#: Names that may become a folder.
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class UrlRef:
    """Where the URL is found: in plain text, in an environment variable or in a file of whoever connects."""

    kind: Literal["plain", "env", "file"]
    text: str

    def url(self) -> BrokerUrl:
        if self.kind == "plain":
            return parse(self.text)
        if self.kind == "env":
            found = os.environ.get(self.text)
            if not found:
                raise ConfigError(
                    f"the environment variable {self.text} is not set here; executors need it too "
                    f"(spark.executorEnv.{self.text})",
                    setting="urlEnv",
                )
            return parse(found)
        try:
            return parse(Path(self.text).read_text(encoding="utf-8").strip())
        except OSError as exc:
            raise ConfigError(
                f"{self.text}: {exc.strerror}; the file must be on every node", setting="urlFile"
            ) from None

    def connect(self) -> Broker:
        return connect(self.url())

    def connect_lasting(self) -> Broker:
        """Reservations outlive the connection, where the broker offers that and the URL does not refuse: the
        task that captured a batch may be dead when somebody else acknowledges it."""
        url = self.url()
        if "hold" in known_options(url) and "hold" not in url.options:
            url = replace(url, options={**url.options, "hold": "lease"})
        return connect(url)

    def traits(self) -> Traits:
        return traits(self.url())

    def receipt_type(self) -> Any:
        """What a portable receipt of this broker is."""
        return receipt_type(self.url())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseOptions:
    url: UrlRef
    queues: tuple[str, ...]
    include_headers: bool
    #: Messages looked at per queue; None for all.
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    path: str
    #: "" to go by the files' names.
    format: str
    min_partitions: int
    include_headers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    url: UrlRef
    queues: tuple[str, ...]
    #: "" for a replayable broker, which needs none.
    landing: str
    stream_id: str
    starting: str
    max_records: int
    max_bytes: int | None
    #: 0 leaves it to the planner.
    min_partitions: int
    fail_on_data_loss: bool
    include_headers: bool
    ack_mode: AckMode
    keep_segments: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """A stream from the embedded broker's log."""

    path: str
    #: Empty for all.
    queues: tuple[str, ...]
    latest: bool
    max_records: int
    #: Positions do not tell sizes.
    max_bytes: None = None
    min_partitions: int
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    url: UrlRef
    #: "" when every row names its own.
    queue: str
    job_id: str
    batch_size: int
    lang: str


def read_options(raw: Mapping[str, str]) -> BrowseOptions | ArchiveOptions:
    given = _checked(raw, READ_OPTIONS)
    if "path" in given:
        for name in ("url", "urlenv", "urlfile", "queue", "limit"):
            if name in given:
                raise ConfigError("an archive is read by path alone, and whole", setting=name)
        return ArchiveOptions(
            path=given["path"],
            format=given.get("archiveformat", ""),
            min_partitions=_integer(given, "minPartitions", 0),
            include_headers=_flag(given, "includeHeaders", True),
        )
    url = _url(given)
    limit = _integer(given, "limit", 0, least=1) if "limit" in given else None
    return BrowseOptions(
        url=url, queues=_queues(given, url), include_headers=_flag(given, "includeHeaders", True), limit=limit
    )


def stream_options(raw: Mapping[str, str]) -> StreamOptions:
    given = _checked(raw, STREAM_OPTIONS)
    url = _url(given)
    replayable = url.traits().replayable
    mode = given.get("ackmode", "after-capture")
    if mode not in ("after-capture", _FORMER_ACK_MODE, "never"):
        raise ConfigError(f"{mode!r} is neither after-capture nor never", setting="ackMode")
    if "maxrecordspertrigger" in given and "maxoffsetspertrigger" in given:
        raise ConfigError("means the same as maxRecordsPerTrigger; give one", setting="maxOffsetsPerTrigger")
    name = "maxOffsetsPerTrigger" if "maxoffsetspertrigger" in given else "maxRecordsPerTrigger"
    return StreamOptions(
        url=url,
        queues=_queues(given, url),
        landing="" if replayable else _landing(given),
        stream_id=_stream_id(given),
        starting=_starting(given, replayable),
        max_records=_integer(given, name, DEFAULT_RECORDS, least=1),
        max_bytes=_size(given, "maxBytesPerTrigger") or (None if replayable else DEFAULT_BYTES),
        min_partitions=_integer(given, "minPartitions", 0),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_headers=_flag(given, "includeHeaders", True),
        ack_mode="never" if mode == "never" else "after-capture",
        keep_segments=_flag(given, "keepSegments", False),
    )


def log_options(raw: Mapping[str, str]) -> LogOptions:
    given = _checked(raw, LOG_OPTIONS)
    starting = given.get("startingoffsets", "earliest")
    if starting not in ("earliest", "latest"):
        raise ConfigError("a log is read from earliest or latest", setting="startingOffsets")
    return LogOptions(
        path=given["path"].removeprefix("file://"),
        queues=_named(given),
        latest=starting == "latest",
        max_records=_integer(given, "maxRecordsPerTrigger", DEFAULT_RECORDS, least=1),
        min_partitions=_integer(given, "minPartitions", 0) or (os.cpu_count() or 1),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
    )


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    given = _checked(raw, WRITE_OPTIONS)
    url = _url(given)
    return WriteOptions(
        url=url,
        queue=given.get("queue", "") or url.url().queue,
        job_id=given.get("jobid", ""),
        batch_size=_integer(given, "batchSize", DEFAULT_WRITE_BATCH, least=1),
        lang=given.get("lang", ""),
    )


def _checked(raw: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in known}
    given = {name.lower(): value for name, value in raw.items()}
    for name in given:
        if name not in by_lower:
            near = difflib.get_close_matches(name, by_lower, 1, 0.5)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"is not an option here; {hint}", setting=name)
    return given


def _url(given: Mapping[str, str]) -> UrlRef:
    found = [name for name in ("url", "urlenv", "urlfile") if name in given]
    if len(found) != 1:
        what = (
            "give one of url, urlEnv and urlFile"
            if found
            else "is missing; give url, urlEnv, urlFile or path"
        )
        raise ConfigError(what, setting="url")
    if found[0] == "urlenv":
        return UrlRef("env", given["urlenv"])
    if found[0] == "urlfile":
        return UrlRef("file", given["urlfile"])
    url = parse(given["url"])
    if url.password or SECRET_OPTIONS & url.options.keys():
        raise ConfigError(
            "holds a password, and Spark shows options in plans and events; put the URL into an environment "
            "variable or a file of driver and executors and name that with urlEnv or urlFile",
            setting="url",
        )
    return UrlRef("plain", given["url"])


def _queues(given: Mapping[str, str], url: UrlRef) -> tuple[str, ...]:
    names = _named(given) or (url.url().queue,)
    if not names[0]:
        raise ConfigError("is missing; name the queue (or several with commas)", setting="queue")
    if len(set(names)) != len(names):
        raise ConfigError("names a queue twice", setting="queue")
    return tuple(names)


def _named(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.get("queue", "").split(",") if name.strip())


def _landing(given: Mapping[str, str]) -> str:
    landing = given.get("landing", "").removeprefix("file://")
    if not landing:
        raise ConfigError(
            "is missing; a queue hands a message out once, so name a folder that driver and executors share, "
            "where batches are stored before they are acknowledged",
            setting="landing",
        )
    if "://" in landing or not os.path.isabs(landing):
        raise ConfigError(
            f"{landing!r} is not an absolute path; segments need a file system with hard links and atomic "
            "renames (local disk, NFS), not an object store",
            setting="landing",
        )
    return landing


def _stream_id(given: Mapping[str, str]) -> str:
    name = given.get("streamid", "default")
    if not _STREAM_ID.fullmatch(name):
        raise ConfigError("may hold letters, digits, dot, dash and underscore only", setting="streamId")
    return name


def _starting(given: Mapping[str, str], replayable: bool) -> str:
    text = given.get("startingoffsets", "earliest")
    if not replayable and text != "earliest":
        raise ConfigError(
            "a queue is read from its front; only earliest is possible here (a broker with offsets also "
            'takes latest and {"orders": {"0": 42}})',
            setting="startingOffsets",
        )
    return text


def _integer(given: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ConfigError(f"{text!r} is not a whole number of at least {least}", setting=name)
    return int(text)


def _size(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ConfigError(f"{text!r} is not a size; write bytes, or 64k, 64m, 2g", setting=name)
    return int(match[1]) * _UNITS[match[2].lower()]


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{text!r} is neither true nor false", setting=name)
    return text.lower() == "true"
