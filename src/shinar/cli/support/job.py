"""A pipeline job as the command line and a job file describe it, checked before Spark starts."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.lake import span_s, spark_extra
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.pipeline.config import PipelineConfig

#: Names a job file may hold, and the type of each.
JOB_NAMES: Final[dict[str, type]] = {
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
    "after_restore": str,
    "handlers": str,
    "master": str,
    "routes": dict,
    "options": dict,
    "spark": dict,
}


def job_of(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """The job as one dict: flag, then job file, then SHINAR_* and shinar.toml."""
    job = _file(args.file) if args.file else {}
    flags = {name: getattr(args, name, None) for name in JOB_NAMES}
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
    try:
        job = tomllib.loads(Path(path).read_text())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", setting=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not TOML: {exc}", setting=path) from None
    for name, value in job.items():
        if name not in JOB_NAMES:
            near = difflib.get_close_matches(name, JOB_NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(JOB_NAMES)}"
            raise ConfigError(f"there is no such name; {hint}", setting=name, origin=path)
        if type(value) is not JOB_NAMES[name]:
            raise ConfigError(f"must be a {JOB_NAMES[name].__name__}", setting=name, origin=path)
    return job


def config_of(job: dict[str, Any]) -> PipelineConfig:
    """The job's configuration. Whatever can be wrong with it, or with its lake, is found here."""
    with spark_extra():
        import msgspec

        from shinar.pipeline.config import PipelineConfig
        from shinar.pipeline.lake.store import check_lake_folder
    given: dict[str, Any] = {
        "url": job.get("from"),
        "url_env": job.get("from_env"),
        "url_file": job.get("from_file"),
        "path": job.get("archive"),
        "table_format": job.get("format"),
        "options": {name: str(value) for name, value in job.get("options", {}).items()},
        "horizon_s": _horizon_s(job.get("horizon")),
    }
    same = ("queue", "job", "checkpoint", "max_records", "routes", "typed", "registry", "after_restore")
    given |= {name: job.get(name) for name in same}
    config = msgspec.structs.replace(PipelineConfig(), **{k: v for k, v in given.items() if v is not None})
    check_lake_folder(job["lake"])
    config.check()
    return config


def _horizon_s(text: str | None) -> float | None:
    if not text:
        return None
    return float("inf") if text == "all" else span_s(text, "horizon")


def handlers_of(job: dict[str, Any]) -> Callable[[Any], object]:
    """The user's function that registers handlers; one that does nothing where the job has none."""
    name = job.get("handlers")
    if not name:
        return lambda _: None
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function or "register")
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"cannot be loaded: {exc}; write module:function", setting="handlers") from None
    if not callable(found):
        raise ConfigError(f"{name} is not a function that takes the Pipeline", setting="handlers")
    return found  # type: ignore[no-any-return]  # a user's module
