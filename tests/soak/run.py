"""Everything at once, for as long as you like: producers, workers, kills, server restarts, a pipeline and
redrives on four brokers, with one ledger that must add up at the end.

    make soak                                     30 minutes
    python tests/soak/run.py --minutes 5 --brokers phpmq,redis

Every message whose send was confirmed ends handled, as a dead letter with its cause, or as a row; nothing is
lost. Repeats are counted and shown. The exit code is 1 when a sum is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import servers  # noqa: E402  # after the path
from shinar import Producer  # noqa: E402
from shinar.brokers import Outgoing, connect, traits  # noqa: E402
from shinar.errors import BrokerError  # noqa: E402
from shinar.settlement import dead_letter_queue  # noqa: E402

#: Row -> server behind it.
BROKERS = {"phpmq": "phpmq", "redis": "redis", "rabbitmq": "rabbitmq", "postgresql": "postgresql"}
QUEUE, LAKE_QUEUE = "soak", "soak-lake"
#: Messages a second and broker, for handlers and for the lake together.
RATE = 150
#: Processes are killed about this often, and servers restarted.
KILL_EVERY_S, RESTART_EVERY_S = 4.0, 25.0
#: Longest time for everything to drain at the end.
DRAIN_S = 300.0


@dataclass
class Truth:
    """What was confirmed. A send whose confirmation was lost is in `unsure`: it may or may not be there."""

    sent: dict[str, set[int]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    lake: set[str] = field(default_factory=set)
    lake_unsure: set[str] = field(default_factory=set)
    lake_poison: int = 0
    lake_poison_unsure: int = 0

    def add(self, kind: str, n: int) -> None:
        self.sent.setdefault(kind, set()).add(n)


@dataclass
class Place:
    """One broker under soak."""

    name: str
    server: servers.Server
    folder: Path
    seed: int
    truth: Truth = field(default_factory=Truth)
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        lease = "lease_s=5"
        if traits(self.server.url).lease_s is None:
            return self.server.url
        return f"{self.server.url}{'&' if '?' in self.server.url else '?'}{lease}"

    @property
    def dead_queue(self) -> str:
        return dead_letter_queue(QUEUE, traits(self.url))

    @property
    def effects(self) -> Path:
        return self.folder / "effects"

    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            "SOAK_EFFECTS": str(self.effects),
            "SOAK_FIXED": str(self.folder / "fixed"),
            "SHINAR_LEDGER": str(self.folder / "ledger.db"),
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "shinar.cli.main", *words]

    def worker(self, *flags: str) -> list[str]:
        return self.command(
            "worker", "soak.app:handlers", "--url", self.url, "--queue", QUEUE, "--concurrency", "2",
            "--max-attempts", "8", "--backoff-base-s", "0.1", "--backoff-max-s", "0.5", "--log-level",
            "error", *flags,
        )  # fmt: skip

    def pipeline(self) -> list[str]:
        return self.command(
            "pipeline", "run", "--from", self.url, "--queue", LAKE_QUEUE, "--lake", str(self.folder / "lake"),
            "--once", "--json", "--quiet", "--master", "local[2]",
        )  # fmt: skip

    def start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.env(), stdout=log, stderr=log, start_new_session=True
            )


def kind_of(n: int) -> str:
    return {7: "poison", 13: "unknown", 23: "broken", 31: "shaky", 37: "shaky"}.get(n % 50, "good")


class Produce(threading.Thread):
    """Sends at an even rate until told to stop; what is not confirmed is noted as unsure and not repeated."""

    def __init__(self, place: Place, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._place, self._stop_now = place, stop

    def run(self) -> None:
        n = 0
        producer: Producer | None = None
        while not self._stop_now.is_set():
            began_s = time.monotonic()
            try:
                producer = producer or Producer(self._place.url, queue=QUEUE)
                for _ in range(RATE // 10):
                    self._send(producer, n)
                    n += 1
            except BrokerError:
                n += 1
                if producer is not None:
                    with contextlib.suppress(BrokerError):
                        producer.close()
                producer = None
                time.sleep(0.5)
            time.sleep(max(0.0, 0.1 - (time.monotonic() - began_s)))
        if producer is not None:
            with contextlib.suppress(BrokerError):
                producer.close()

    def _send(self, producer: Producer, n: int) -> None:
        truth = self._place.truth
        if n % 3 == 0:
            self._send_to_lake(producer, n)
            return
        kind = kind_of(n)
        truth.unsure.add(n)
        if kind == "poison":
            producer.send_bodies([b'{"job":"urn:babel:soak:poison","attempts":"%d"}' % n])
        else:
            producer.send(f"urn:babel:soak:{kind}", {"n": n})
        truth.unsure.discard(n)
        truth.add(kind, n)

    def _send_to_lake(self, producer: Producer, n: int) -> None:
        truth = self._place.truth
        if n % 51 == 0:
            truth.lake_poison_unsure += 1
            # Equal bodies on purpose: two of them are two rows.
            producer.send_bodies([b'{"job":"urn:babel:soak:poison","attempts":"x"}'], queue=LAKE_QUEUE)
            truth.lake_poison_unsure -= 1
            truth.lake_poison += 1
            return
        name = f"{self._place.name}-{n}"
        truth.lake_unsure.add(name)
        producer.send("urn:babel:soak:row", {"name": name, "n": n}, queue=LAKE_QUEUE)
        truth.lake_unsure.discard(name)
        truth.lake.add(name)


class Work(threading.Thread):
    """Keeps workers and, in turn, pipelines running, and shoots them."""

    def __init__(self, place: Place, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._place, self._stop_now = place, stop
        self._draw = random.Random(place.seed)

    def run(self) -> None:
        place = self._place
        workers = [place.start(place.worker(), f"worker-{i}") for i in range(2)]
        try:
            while not self._stop_now.wait(self._draw.uniform(0.5, 1.5) * KILL_EVERY_S):
                victim = self._draw.randrange(len(workers))
                sort = self._draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                end(workers[victim], sort)
                place.kills[sort.name] += 1
                workers[victim] = place.start(place.worker(), f"worker-{victim}")
        finally:
            for worker in workers:
                end(worker, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """The whole process group: a killed driver's JVM and Python workers go with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Disturb(threading.Thread):
    """Restarts servers, redrives, and runs one pipeline after another, killing two of three."""

    def __init__(self, places: list[Place], stop: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self._places, self._stop_now, self._draw = places, stop, random.Random(seed)

    def run(self) -> None:
        round_ = 0
        while not self._stop_now.is_set():
            place = self._places[round_ % len(self._places)]
            self._pipeline(place, shoot=round_ % 3 != 2)
            if self._stop_now.wait(1):
                return
            if place.server.durable:
                place.server.stop()
                time.sleep(self._draw.uniform(0, 1.5))
                place.server.start()
                place.kills["restart"] += 1
            process = place.start(redrive(place, "reason = 'failed'", "--limit", "20"), "redrive")
            self._stop_now.wait(self._draw.uniform(1, 6))
            end(process, signal.SIGKILL)
            place.kills["redrive"] += 1
            round_ += 1

    def _pipeline(self, place: Place, *, shoot: bool) -> None:
        process = place.start(place.pipeline(), "pipeline")
        deadline_s = time.monotonic() + (self._draw.uniform(4, 25) if shoot else 120)
        while process.poll() is None and time.monotonic() < deadline_s and not self._stop_now.wait(0.2):
            pass
        if process.poll() is None:
            place.kills["pipeline"] += 1
        end(process, signal.SIGKILL)


def redrive(place: Place, where: str, *flags: str) -> list[str]:
    source = servers.with_queue(place.url, place.dead_queue)
    words = [
        "redrive",
        source,
        "--where",
        where,
        "--yes",
        "--reserve",
        "--loop-limit",
        "0",
        "--json",
        "--quiet",
    ]
    return place.command(*words, *flags)


def finish(place: Place) -> None:
    """The deployment that mends `broken`; then everything that is left is worked off, and sent back."""
    (place.folder / "fixed").touch()
    run(place, place.worker("--until-empty"), "final worker")
    for job in unfinished(place):
        source = servers.with_queue(place.url, place.dead_queue)
        run(
            place,
            place.command("redrive", "resume", job, "--url", source, "--json", "--quiet"),
            "resume",
            (0, 1),
        )
    run(place, redrive(place, "reason = 'failed'"), "final redrive", (0, 1))
    run(place, place.worker("--until-empty"), "final worker")
    for _ in range(2):
        run(place, place.pipeline(), "final pipeline")


def run(place: Place, command: list[str], what: str, fine: tuple[int, ...] = (0,)) -> None:
    process = place.start(command, what.replace(" ", "-"))
    try:
        code = process.wait(DRAIN_S)
    except subprocess.TimeoutExpired:
        end(process, signal.SIGKILL)
        code = -9
    if code not in fine:
        place.problems.append(
            f"{what} ended with {code}; see {place.folder.name}/{what.replace(' ', '-')}.log"
        )


def unfinished(place: Place) -> list[str]:
    command = place.command("redrive", "list", "--json")
    done = subprocess.run(
        command, env=place.env(), cwd=place.folder, capture_output=True, text=True, check=False
    )
    jobs = [json.loads(line) for line in done.stdout.splitlines()]
    return [job["id"] for job in jobs if job["state"] not in ("done", "cancelled")]


# -- the balance


def balance(place: Place) -> dict[str, object]:
    truth = place.truth
    effects = Counter(map(int, place.effects.read_text().split())) if place.effects.exists() else Counter()
    due = set().union(*(truth.sent.get(kind, set()) for kind in ("good", "shaky", "broken")))
    dead = dead_letters(place)
    check(place, "lost effects", due - set(effects))
    check(place, "effects nobody sent", set(effects) - due - truth.unsure)
    for kind, reason in (("poison", "poison"), ("unknown", "unknown_urn")):
        sent = truth.sent.get(kind, set())
        check(place, f"lost {kind}", sent - set(dead[reason]))
        check(place, f"{kind} nobody sent", set(dead[reason]) - sent - truth.unsure)
    check(place, "failed ones left", set(dead["failed"]) & due - set(effects))
    rows, quarantine, balanced = tables(place)
    check(place, "lost rows", truth.lake - set(rows))
    check(place, "rows twice", {name for name, count in rows.items() if count > 1})
    check(place, "rows nobody sent", set(rows) - truth.lake - truth.lake_unsure)
    poison_most = truth.lake_poison + truth.lake_poison_unsure
    if not balanced:
        place.problems.append("the lake does not add up")
    if quarantine < truth.lake_poison:
        place.problems.append(f"{truth.lake_poison - quarantine} poison rows are lost")
    return {
        "broker": place.name,
        "sent": sum(map(len, truth.sent.values())) + len(truth.lake) + truth.lake_poison,
        "unsure": len(truth.unsure) + len(truth.lake_unsure) + truth.lake_poison_unsure,
        "handled": len(due & set(effects)),
        "handled_again": sum(effects.values()) - len(effects),
        "dead": {reason: len(found) for reason, found in dead.items()},
        "rows": len(rows),
        "quarantine": quarantine,
        "quarantine_possible_redeliveries": max(0, quarantine - poison_most),
        "kills": dict(place.kills),
        "problems": place.problems,
    }


def check(place: Place, what: str, wrong: set[int] | set[str]) -> None:
    if wrong:
        place.problems.append(f"{what}: {len(wrong)}, such as {sorted(wrong, key=str)[:5]}")


def dead_letters(place: Place) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {"poison": Counter(), "unknown_urn": Counter(), "failed": Counter()}
    broker = connect(place.url)
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        batch = broker.reserve(place.dead_queue, 200, 6.0)
        if not batch:
            break
        for delivery in batch:
            letter = json.loads(delivery.body)
            n = letter["data"]["n"] if "data" in letter else int(letter["attempts"])
            found[letter["dead_letter"]["reason"]][n] += 1
        broker.ack(batch)
    broker.close()
    return found


def tables(place: Place) -> tuple[Counter[str], int, bool]:
    """Rows by name and quarantined ones, read without our own code; and what the lake says of itself."""
    import pyarrow as pa
    from deltalake import DeltaTable

    lake = place.folder / "lake"

    def read(name: str) -> pa.Table | None:
        folder = lake / name
        return DeltaTable(str(folder)).to_pyarrow_table() if folder.exists() else None

    messages, quarantine = read("messages"), read("quarantine")
    names = (
        Counter(json.loads(data)["name"] for data in messages["data"].to_pylist()) if messages else Counter()
    )
    told = subprocess.run(
        place.command("pipeline", "status", "--lake", str(lake), "--json"),
        env=place.env(), cwd=place.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    balanced = told.returncode == 0 and json.loads(told.stdout)["balanced"]
    return names, quarantine.num_rows if quarantine else 0, balanced


def soak(folder: Path, names: list[str], seconds: float, seed: int) -> list[dict[str, object]]:
    places = []
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        server = servers.start_private(BROKERS[name])
        places.append(Place(name, server, folder / name, seed + number))
    stop_sending, stop = threading.Event(), threading.Event()
    producers = [Produce(place, stop_sending) for place in places]
    others: list[threading.Thread] = [Work(place, stop) for place in places]
    others.append(Disturb(places, stop, seed))
    try:
        for place in places:  # so that nobody meets a queue that is not there
            broker = connect(place.url)
            broker.publish(QUEUE, [Outgoing(b'{"job":"urn:babel:soak:poison","attempts":"-1"}')])
            place.truth.add("poison", -1)
            broker.close()
        for thread in (*producers, *others):
            thread.start()
        time.sleep(seconds)
        stop_sending.set()
        for thread in producers:
            thread.join(60)
        stop.set()
        for thread in others:
            thread.join(180)
        for place in places:
            if not place.server.alive:
                place.server.start()
            finish(place)
        return [balance(place) for place in places]
    finally:
        stop_sending.set()
        stop.set()
        for place in places:
            place.server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--brokers", default=",".join(BROKERS))
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--keep", type=Path, help="folder for logs and lakes (default: a temporary one)")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="shinar-soak-"))
    print(f"seed {args.seed}, logs in {folder}", flush=True)
    results = soak(folder, args.brokers.split(","), args.minutes * 60, args.seed)
    for result in results:
        print(json.dumps(result), flush=True)
    wrong = sum(len(result["problems"]) for result in results)  # type: ignore[arg-type]  # a list
    print("everything adds up" if not wrong else f"{wrong} problems", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
