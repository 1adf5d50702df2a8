"""One client does its worst, and its neighbour notices nothing: attacks on a broker in a process of its own.

A neighbour with a token of its own publishes, reserves and acks while each attack runs. Its 99th percentile
must stay under 50 ms, or under five times that of the same requests to a second broker, which nobody attacks,
in the same seconds: CI machines are slow and shared, and what counts is what the attack adds. For the same
reason the best of three measurements counts; an attack that works is orders of magnitude beyond the limit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.phpmq.client import Client, PhpmqAddress
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.server.access import digest_of

MALLORY, NEIGHBOUR = "mallory-token-0001", "neighbour-token-01"
#: Rounds of publish, reserve and ack that make up one measurement.
ROUNDS = 150
ALLOWED_S = 0.050
ALLOWED_FACTOR = 5
TRIES = 3
#: Resident memory the broker may gain by an attack.
ALLOWED_MIB = 120


@dataclass(frozen=True)
class Running:
    port: int
    metrics_port: int
    pid: int

    def url(self, token: str) -> str:
        return f"phpmq://:{token}@127.0.0.1:{self.port}"

    def client(self, token: str = MALLORY) -> Client:
        return Client(PhpmqAddress(port=self.port, token=token))

    def raw(self, token: str = MALLORY) -> socket.socket:
        """A connection that said hello and has read its welcome; what follows is up to the test."""
        found = socket.create_connection(("127.0.0.1", self.port))
        found.sendall(ext.pack(ext.Hello(1, token, "mallory")))
        found.settimeout(10)
        assert found.recv(4096).startswith(b"H01101")
        return found

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(folder: Path) -> tuple[subprocess.Popen[bytes], Running]:
    folder.mkdir()
    rules = folder / "rules.toml"
    rules.write_text(
        f'[[client]]\nname = "mallory"\nsha256 = "{digest_of(MALLORY)}"\nread = ["m*"]\nwrite = ["m*"]\n'
        f'[[client]]\nname = "neighbour"\nsha256 = "{digest_of(NEIGHBOUR)}"\n'
        'read = ["n*", "m*"]\nwrite = ["n*", "m*"]\nadmin = true\n'
    )
    metrics_port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "shinar.cli.main", "broker", "serve", "--listen", "127.0.0.1:0", "--json",
         "--data", str(folder / "data"), "--rules", str(rules), "--metrics", f"127.0.0.1:{metrics_port}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["urls"][0]
    return process, Running(int(url.rpartition(":")[2]), metrics_port, process.pid)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    """The broker to be attacked, and one that is left alone."""
    folder = tmp_path_factory.mktemp("neighbours")
    attacked, running = serve(folder / "attacked")
    control, quiet = serve(folder / "control")
    yield running, quiet
    for process in (attacked, control):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "it still stops cleanly"
        process.stdout.close()  # type: ignore[union-attr]  # a pipe, as asked for


def p99_s(running: Running, control: Running) -> tuple[float, float]:
    """Of every single request of a neighbour (publish, reserve, ack), here and at the quiet broker."""
    took: list[list[float]] = [[], []]
    with (
        closing(connect(running.url(NEIGHBOUR))) as one,
        closing(connect(control.url(NEIGHBOUR))) as other,
    ):
        for number in range(ROUNDS):
            for broker, times in zip((one, other), took, strict=True):
                started_s = time.monotonic()
                broker.publish("n1", [Outgoing(b"%d" % number)])
                published_s = time.monotonic()
                got = broker.reserve("n1", 1, 30.0)
                reserved_s = time.monotonic()
                assert [delivery.body for delivery in got] == [b"%d" % number]
                assert broker.ack(got) == ()
                times += [published_s - started_s, reserved_s - published_s, time.monotonic() - reserved_s]
    here, there = (sorted(times)[int(len(times) * 0.99)] for times in took)
    return here, there


def attack(
    running: Running, control: Running, run: Callable[[Running, threading.Event], None]
) -> tuple[float, float, float]:
    """p99 under attack and at the quiet broker in seconds, and the memory the broker gained in MiB."""
    before_mib = running.memory_mib()
    stop = multiprocessing.get_context("fork").Event()
    process = multiprocessing.get_context("fork").Process(target=_attack, args=(run, running, stop))
    process.start()
    try:
        time.sleep(0.5)
        under_s, control_s = p99_s(running, control)
        gained_mib = running.memory_mib() - before_mib
    finally:
        stop.set()
        process.join(30)
        if process.is_alive():
            process.kill()
    return under_s, control_s, gained_mib


def _attack(run: Callable[[Running, threading.Event], None], running: Running, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(OSError):
            run(running, stop)
        time.sleep(0.05)
    os._exit(0)


def pour(running: Running, stop: threading.Event, frame: bytes, *, read: bool, times: int = 4000) -> None:
    """The same request over and over on one connection, with or without reading the answers."""
    with running.raw() as hostile:
        hostile.settimeout(0.2)
        for _ in range(times):
            if stop.is_set():
                return
            try:
                hostile.sendall(frame)
            except TimeoutError:
                continue  # torn in the middle, which is the server's to notice
            if read:
                with suppress(TimeoutError):
                    hostile.recv(1 << 20)


def browses(running: Running, stop: threading.Event) -> None:
    pour(running, stop, ext.pack(ext.Browse(1, "m-big", 0, 1000)), read=False)
    stop.wait(5)


def browses_of_reserved(running: Running, stop: threading.Event) -> None:
    pour(running, stop, ext.pack(ext.Browse(1, "m-reserved", 0, 1)) * 20, read=True)


def listings(running: Running, stop: threading.Event) -> None:
    pour(running, stop, ext.pack(ext.Queues(1)) * 20, read=True)


def empty_items(running: Running, stop: threading.Event) -> None:
    pour(running, stop, ext.pack(ext.Publish(1, "m-empty", [ext.Item(b"")] * 2_000_000)), read=True, times=20)


def full_publishes(running: Running, stop: threading.Event) -> None:
    pour(running, stop, ext.pack(ext.Publish(1, "m-full", [ext.Item(b"x" * 50)] * 2_000)), read=True)


def many_headers(running: Running, stop: threading.Event) -> None:
    extra = ext.Extra({chr(0x4E00 + number): "" for number in range(5_000)})
    frame = ext.pack(ext.Publish(1, "m-headers", [ext.Item(b"", extra)] * 1_000))
    pour(running, stop, frame, read=True, times=20)


def unknown_receipts(running: Running, stop: threading.Event) -> None:
    small = ext.pack(ext.Ack(1, [ext.Held(7, list(range(19_000)))]))
    pour(running, stop, small, read=True, times=200)
    pour(running, stop, ext.pack(ext.Ack(1, [ext.Held(7, [1] * 2_000_000)])), read=True, times=3)


def greedy_reserves(running: Running, stop: threading.Event) -> None:
    """Everything reserved in 60 pipelined requests, and released again by hanging up."""
    with running.raw() as hostile:
        hostile.sendall(b"".join(ext.pack(ext.Reserve(n, "m-many", 10_000)) for n in range(60)))
        hostile.settimeout(0.2)
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s and not stop.is_set():
            with suppress(TimeoutError):
                hostile.recv(1 << 20)


def wrong_tokens(running: Running, stop: threading.Event) -> None:
    guesses = []
    for number in range(50):
        guess = socket.create_connection(("127.0.0.1", running.port))
        guess.sendall(ext.pack(ext.Hello(1, f"guess number {number}", "mallory")))
        guesses.append(guess)
    for guess in guesses:
        guess.close()


def scrapes(running: Running, stop: threading.Event) -> None:
    for _ in range(200):
        if stop.is_set():
            return
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=10).read()


ATTACKS = {
    attack.__name__: attack
    for attack in (
        browses, browses_of_reserved, listings, empty_items, full_publishes, many_headers, unknown_receipts,
        greedy_reserves, wrong_tokens, scrapes,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def furnished(both: tuple[Running, Running]) -> Iterator[Running]:
    """What the attacks need: large bodies, a great many queues, and a hundred thousand reserved messages."""
    running, _ = both
    with closing(connect(running.url(MALLORY))) as broker, closing(connect(running.url(MALLORY))) as holder:
        broker.publish("m-big", [Outgoing(os.urandom(1_000_000)) for _ in range(16)])
        broker.publish("m-many", [Outgoing(b"x" * 20) for _ in range(100_000)])
        broker.publish("m-reserved", [Outgoing(b"x") for _ in range(100_001)])
        client = running.client()
        with closing(client):
            for begin in range(0, 9_000, 500):
                tags = [
                    client.send(ext.Publish(client.tag(), f"m{begin + n}", [ext.Item(b"")]))
                    for n in range(500)
                ]
                for tag in tags:
                    client.receive(tag, int)
        held = 0
        while held < 100_000:
            got = holder.reserve("m-reserved", 10_000, 5)
            held += len(got)
            holder.extend(got, 3600)
        yield running


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_neighbour_is_served_during(furnished: Running, both: tuple[Running, Running], name: str) -> None:
    for _ in range(TRIES):
        under_s, control_s, gained_mib = attack(furnished, both[1], ATTACKS[name])
        times = f"p99 {under_s * 1000:.1f} ms, of the quiet broker {control_s * 1000:.1f} ms"
        print(f"{name}: {times}; {gained_mib:+.0f} MiB")
        assert gained_mib < ALLOWED_MIB
        if under_s <= max(ALLOWED_S, ALLOWED_FACTOR * control_s):
            return
    pytest.fail(f"the neighbour had to wait: {times}")
