"""Queues into tables on Spark. `Pipeline` is the way in; the rooms are the stages of a batch.

Loaded on use: executors import modules of this package and need neither Delta nor the job.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shinar.pipeline.config import PipelineConfig
    from shinar.pipeline.pipeline import Pipeline
    from shinar.pipeline.run_summary import RunSummary

__all__ = ["Pipeline", "PipelineConfig", "RunSummary"]

#: Name -> the module that has it.
_MODULES: Final = {"Pipeline": "pipeline", "PipelineConfig": "config", "RunSummary": "run_summary"}


if not TYPE_CHECKING:  # a type checker would take any name for one of the package's

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
