"""Queues into tables on Spark. `Pipeline` is the way in; the modules are the stations of the line.

Loaded on use: executors import modules of this package and need neither Delta nor the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shinar.pipeline.pipeline import Pipeline, RunSummary

__all__ = ["Pipeline", "RunSummary"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shinar.pipeline import pipeline as job

    return getattr(job, name)
