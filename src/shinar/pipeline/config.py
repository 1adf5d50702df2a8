"""What a job reads, where it writes and how it treats its batches: one frozen value. Starts nothing."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from shinar.brokers import parse
from shinar.brokers.url import SECRET_OPTIONS
from shinar.errors import ConfigError
from shinar.pipeline.batch.processor import BatchRules
from shinar.pipeline.batch.route import Routes
from shinar.pipeline.lake.store import Format
from shinar.pipeline.source.options import UrlRef
from shinar.pipeline.typed.json_schema import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Messages a micro-batch takes at most, unless told otherwise.
MAX_RECORDS: Final = 100_000
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
_KINDS: Final[dict[str, Literal["plain", "env", "file"]]] = {
    "url": "plain",
    "urlEnv": "env",
    "urlFile": "file",
}


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a `Pipeline` can be told. Names of `options` are those of the source."""

    #: One of these three, as for the source; a URL with a password is never put into a plan.
    url: str | None = None
    url_env: str | None = None
    url_file: str | None = None
    #: Or an archive of bodies, read as one batch.
    path: str | None = None
    queue: str | None = None
    #: Name of the job; the queue's unless given.
    job: str | None = None
    checkpoint: str | None = None
    table_format: Format | None = None
    max_records: int = MAX_RECORDS
    #: Passed to the source as they are.
    options: Mapping[str, str] = {}
    #: URN or `prefix*` -> typed table.
    routes: Mapping[str, str] = {}
    typed: bool = True
    registry: str | None = None
    horizon_s: float | None = None
    #: When lake and checkpoint are of different times: stop, read again what there is, or accept the loss.
    after_restore: Literal["fail", "replay", "accept"] = "fail"

    @property
    def job_name(self) -> str:
        return self.job or job_name(self)

    def rules(self) -> BatchRules:
        return BatchRules(self.routes, self.typed, self.registry, self.horizon_s)

    def check(self) -> None:
        """What is wrong is found now, and not when the queue's first messages are captured."""
        if not _JOB.fullmatch(self.job_name):
            raise ConfigError("letters, digits, _ and . only", setting="job")
        if self.max_records < 1:
            raise ConfigError("must be at least 1", setting="max_records")
        if self.after_restore not in ("fail", "replay", "accept"):
            raise ConfigError("must be fail, replay or accept", setting="after_restore")
        Routes(self.routes)
        if self.registry:
            load_registry(self.registry)

    def check_source(self) -> None:
        """What only a job that reads needs: one source, and a queue or an archive that is there."""
        if self.path:
            if not Path(self.path).exists() and not set("*?[") & set(self.path):
                raise ConfigError(f"{self.path} does not exist", setting="archive")
            return
        where = url_ref(self)
        if not self.queue and not where.url().queue:
            raise ConfigError("name one in the URL (scheme://host/queue) or with --queue", setting="queue")


def job_name(config: PipelineConfig) -> str:
    """The queue's name; one that had to be changed keeps a hash, so that no two queues share a checkpoint."""
    name = config.queue or (parse(config.url).queue if config.url else "") or "batch"
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", name).strip("_.")[:55] or "batch"
    return plain if plain == name else f"{plain}_{sha256(name.encode()).hexdigest()[:8]}"


def address(spark: SparkSession, config: PipelineConfig) -> dict[str, str]:
    """The source's options for the URL, without a password among them."""
    found = _given(config)
    url = parse(config.url) if config.url else None
    if url is None or not (url.password or SECRET_OPTIONS & url.options.keys()):
        return found
    if not str(spark.sparkContext.master).startswith("local"):
        raise ConfigError(
            "holds a password; on a cluster put it into an environment variable or a file of every node "
            "and give url_env or url_file",
            setting="url",
        )
    handle, name = tempfile.mkstemp(prefix="shinar-url-")  # readable by this user alone
    with os.fdopen(handle, "w") as file:
        file.write(str(config.url))
    atexit.register(lambda: Path(name).unlink(missing_ok=True))
    return {"urlFile": name}


def url_ref(config: PipelineConfig) -> UrlRef:
    """Where the URL is, not the URL itself."""
    ((name, text),) = _given(config).items()
    return UrlRef(_KINDS[name], text)


def _given(config: PipelineConfig) -> dict[str, str]:
    given = {"url": config.url, "urlEnv": config.url_env, "urlFile": config.url_file}
    found = {name: text for name, text in given.items() if text}
    if len(found) != 1:
        raise ConfigError("give exactly one of url, url_env, url_file and path", setting="url")
    return found
