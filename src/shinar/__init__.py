"""Shinar: polyglot queues in Python, and on Spark.

The names below are the public surface; they are imported when first used, so that a program that
only decodes messages does not pay for a worker. Everything else is imported from its own module.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shinar import errors
    from shinar.brokers import connect
    from shinar.envelope import Message, Verdict, build, decode, encode, judge
    from shinar.errors import (
        BrokerError,
        BrokerUnavailable,
        ConfigError,
        ContractError,
        PublishFailed,
        ShinarError,
        UsageError,
    )
    from shinar.pipeline import Pipeline
    from shinar.producer import Producer
    from shinar.redrive import Redrive
    from shinar.settlement import Backoff, Policy
    from shinar.worker import Context, GiveUp, Handlers, Limits, Retry, Worker

__version__ = "0.2.0.dev0"

__all__ = [
    "Backoff",
    "BrokerError",
    "BrokerUnavailable",
    "ConfigError",
    "Context",
    "ContractError",
    "GiveUp",
    "Handlers",
    "Limits",
    "Message",
    "Pipeline",
    "Policy",
    "Producer",
    "PublishFailed",
    "Redrive",
    "Retry",
    "ShinarError",
    "UsageError",
    "Verdict",
    "Worker",
    "build",
    "connect",
    "decode",
    "encode",
    "errors",
    "judge",
]

_HOMES = {
    "Backoff": "shinar.settlement",
    "BrokerError": "shinar.errors",
    "BrokerUnavailable": "shinar.errors",
    "ConfigError": "shinar.errors",
    "Context": "shinar.worker",
    "ContractError": "shinar.errors",
    "GiveUp": "shinar.worker",
    "Handlers": "shinar.worker",
    "Limits": "shinar.worker",
    "Message": "shinar.envelope",
    "Pipeline": "shinar.pipeline",
    "Policy": "shinar.settlement",
    "Producer": "shinar.producer",
    "PublishFailed": "shinar.errors",
    "Redrive": "shinar.redrive",
    "Retry": "shinar.worker",
    "ShinarError": "shinar.errors",
    "UsageError": "shinar.errors",
    "Verdict": "shinar.envelope",
    "Worker": "shinar.worker",
    "build": "shinar.envelope",
    "connect": "shinar.brokers",
    "decode": "shinar.envelope",
    "encode": "shinar.envelope",
    "judge": "shinar.envelope",
}

#: Packages that `shinar[spark]` installs and that a pipeline imports.
_SPARK_EXTRA = frozenset({"deltalake", "numpy", "pandas", "pyarrow", "pyspark"})

if not TYPE_CHECKING:  # a type checker that sees it would take any misspelt name for one of ours

    def __getattr__(name: str) -> object:
        import importlib

        if name == "errors":
            return importlib.import_module("shinar.errors")
        if name not in _HOMES:
            raise AttributeError(f"module 'shinar' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as exc:
            package = (exc.name or "").partition(".")[0]
            if package not in _SPARK_EXTRA:
                raise
            missing = importlib.import_module("shinar.errors").MissingExtra
            raise missing(f"shinar.{name}", package, "spark") from None

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])


del TYPE_CHECKING
