"""The embedded broker's engine: queues, leases and settlement over a store. Synchronous, without sockets."""

from __future__ import annotations

from shinar.phpmq.engine.engine import BrokerEngine
from shinar.phpmq.engine.options import DispatchForm, Options, RequestRefused

__all__ = ["BrokerEngine", "DispatchForm", "Options", "RequestRefused"]
