"""The worker: handlers by URN over any broker, nothing lost in silence."""

from shinar.worker.context import Context, GiveUp, Retry, bypass_external_effects, current, is_replay
from shinar.worker.handlers import Handlers, Step, validated
from shinar.worker.health import Endpoint, Health
from shinar.worker.limits import Limits, StopReason
from shinar.worker.run import Report, Worker
from shinar.worker.steps import idempotent, log_step, metrics_step, rate_limit, timeout

__all__ = [
    "Context",
    "Endpoint",
    "GiveUp",
    "Handlers",
    "Health",
    "Limits",
    "Report",
    "Retry",
    "Step",
    "StopReason",
    "Worker",
    "bypass_external_effects",
    "current",
    "idempotent",
    "is_replay",
    "log_step",
    "metrics_step",
    "rate_limit",
    "timeout",
    "validated",
]
