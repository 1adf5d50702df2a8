"""The embedded broker's server: asyncio listeners, connections, queues, delivery."""

from __future__ import annotations

from shinar.phpmq.server.access import Access, Rights
from shinar.phpmq.server.listen import DEFAULT_PORT, Listener, Server
from shinar.phpmq.server.options import DispatchForm, Options
from shinar.phpmq.server.thread import ServerThread, serve_in_thread

__all__ = [
    "DEFAULT_PORT",
    "Access",
    "DispatchForm",
    "Listener",
    "Options",
    "Rights",
    "Server",
    "ServerThread",
    "serve_in_thread",
]
