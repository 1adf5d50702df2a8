"""The embedded broker's server: asyncio listeners, connections, queues, delivery."""

from __future__ import annotations

from shinar.phpmq.engine import DispatchForm, Options
from shinar.phpmq.server.access import Access, Rights
from shinar.phpmq.server.hub import DEFAULT_PORT, Listener
from shinar.phpmq.server.listen import Server
from shinar.phpmq.server.metrics_endpoint import MetricsListener
from shinar.phpmq.server.thread import ServerThread, serve_in_thread

__all__ = [
    "DEFAULT_PORT",
    "Access",
    "DispatchForm",
    "Listener",
    "MetricsListener",
    "Options",
    "Rights",
    "Server",
    "ServerThread",
    "serve_in_thread",
]
