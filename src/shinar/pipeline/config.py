"""What a job is called, where it reads, and which checkpoint is its own. Starts nothing, reads no message."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import uuid
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from shinar import durable_files as durable
from shinar.brokers import parse
from shinar.brokers.url import SECRET_OPTIONS
from shinar.errors import ConfigError
from shinar.pipeline.lake.store import Format
from shinar.pipeline.source.options import UrlRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Messages a micro-batch takes at most, unless told otherwise.
MAX_RECORDS: Final = 100_000
_KINDS: Final[dict[str, Literal["plain", "env", "file"]]] = {
    "url": "plain",
    "urlEnv": "env",
    "urlFile": "file",
}


class Settings(msgspec.Struct, frozen=True):
    """Where a job reads and writes. Names of options are those of the source."""

    #: One of these three, as for the source; a URL with a password is never put into a plan.
    url: str | None = None
    url_env: str | None = None
    url_file: str | None = None
    #: Or an archive of bodies, read as one batch.
    path: str | None = None
    queue: str | None = None
    job: str | None = None
    checkpoint: str | None = None
    table_format: Format | None = None
    max_records: int = MAX_RECORDS
    #: Passed to the source as they are.
    options: Mapping[str, str] = {}


def job_name(settings: Settings) -> str:
    """The queue's name; one that had to be changed keeps a hash, so that no two queues share a checkpoint."""
    name = settings.queue or (parse(settings.url).queue if settings.url else "") or "batch"
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", name).strip("_.")[:55] or "batch"
    return plain if plain == name else f"{plain}_{sha256(name.encode()).hexdigest()[:8]}"


def address(spark: SparkSession, settings: Settings) -> dict[str, str]:
    """The source's options for the URL, without a password among them."""
    found = _given(settings)
    url = parse(settings.url) if settings.url else None
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
        file.write(str(settings.url))
    atexit.register(lambda: Path(name).unlink(missing_ok=True))
    return {"urlFile": name}


def _given(settings: Settings) -> dict[str, str]:
    given = {"url": settings.url, "urlEnv": settings.url_env, "urlFile": settings.url_file}
    found = {name: text for name, text in given.items() if text}
    if len(found) != 1:
        raise ConfigError("give exactly one of url, url_env, url_file and path", setting="url")
    return found


def epoch_of(checkpoint: Path) -> str:
    """One per checkpoint, kept inside it: whoever deletes the checkpoint starts a new count of batches."""
    path = checkpoint / "shinar-epoch"
    if not path.exists():
        durable.write(path, uuid.uuid4().hex.encode())
    return path.read_text().strip()


def same_broker(settings: Settings, checkpoint: Path) -> None:
    """Where a checkpoint counts a broker's positions: with another's, messages would be passed over. A queue
    has none, and may move."""
    ((name, text),) = _given(settings).items()
    place = UrlRef(_KINDS[name], text)
    if not place.traits().replayable:
        return
    url = place.url()
    hosts = ",".join(sorted(url.netloc.lower().split(",")))
    mark = sha256(f"{url.scheme}\0{hosts}\0{url.path}".encode()).hexdigest()
    path = checkpoint / "shinar-broker"
    if not path.exists():
        durable.write(path, mark.encode())
    elif path.read_text().strip() != mark:
        raise ConfigError(
            f"the checkpoint {checkpoint} is that of another broker, or of this one under another address; "
            f"give the job another name (--job), or remove {path} if it is the same broker",
            setting="url",
        )
