"""A server inside the calling process, in a thread of its own: for tests, notebooks and the demo."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from shinar.phpmq.engine import Options
from shinar.phpmq.server.access import Access
from shinar.phpmq.server.hub import Listener
from shinar.phpmq.server.listen import Server
from shinar.phpmq.store import BrokerStore, Durability


class ServerThread:
    """Running from construction to `stop`; also a context manager."""

    def __init__(self, make: Callable[[], Server]) -> None:
        started: Future[list[str]] = Future()
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make, started), name="shinar-broker", daemon=True
        )
        self._thread.start()
        self.urls = started.result()

    @property
    def url(self) -> str:
        """The first listener's URL, without a queue."""
        return self.urls[0]

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()

    def __enter__(self) -> ServerThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, make: Callable[[], Server], started: Future[list[str]]) -> None:
        try:
            self._loop.run_until_complete(self._serve(make, started))
        finally:
            self._loop.close()

    async def _serve(self, make: Callable[[], Server], started: Future[list[str]]) -> None:
        try:
            self.server = make()
            await self.server.start()
        except BaseException as exc:
            started.set_exception(exc)
            return
        started.set_result(self.server.urls)
        await self._done.wait()
        await self.server.stop()


def serve_in_thread(
    data_dir: str | Path, *, listeners: tuple[Listener, ...] = (Listener(port=0),),
    options: Options | None = None, access: Access | None = None,
    durability: Durability = "fsync", archive: bool = False,
) -> ServerThread:  # fmt: skip
    """Start a broker on a free loopback port; its `url` takes clients, its `stop` ends it cleanly."""

    def make() -> Server:
        store = BrokerStore(Path(data_dir), durability=durability, archive=archive)
        return Server(store, listeners, options=options, access=access)

    return ServerThread(make)
