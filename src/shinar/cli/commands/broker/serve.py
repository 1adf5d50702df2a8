"""`shinar broker serve`: flags into listeners, access and options; then the server until a signal."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import resource
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.output import emit
from shinar.errors import Cancelled, ConfigError, StoreError

if TYPE_CHECKING:
    from shinar.phpmq.server import Access, Listener, MetricsListener, Options, Server

DEFAULT_LISTEN: Final = "127.0.0.1:9100"
#: Read from the environment, never from the command line, where every user of the host could see it.
TOKEN_VARIABLE: Final = "SHINAR_BROKER_TOKEN"
MIB: Final = 1024 * 1024
#: Files a server has open beside its clients.
SPARE_FILES: Final = 256


def register(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser("serve", help="run the broker until it is stopped")
    parser.add_argument(
        "--listen",
        action="append",
        metavar="HOST:PORT[,form=legacy|ttl][,tls][,open]",
        help=f"where to listen, several times if need be (default {DEFAULT_LISTEN}; port 0 takes a free one)",
    )
    parser.add_argument(
        "--unix", action="append", default=[], metavar="PATH[,form=…]", help="a Unix socket as well"
    )
    add_data(parser)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync", help="default fsync")
    parser.add_argument("--dispatch-form", choices=("legacy", "ttl"), default="legacy", help="default legacy")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--tls-client-ca", type=Path, help="ask clients for a certificate of this authority")
    parser.add_argument("--token-file", type=Path, help=f"file with the shared token (or {TOKEN_VARIABLE})")
    parser.add_argument("--rules", type=Path, help="TOML file with tokens and per-queue rules")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="Prometheus metrics over HTTP")
    parser.add_argument("--archive", action="store_true", help="keep acknowledged messages")
    parser.add_argument(
        "--archive-keep-s", type=float, default=None, help="for this long (default: for good)"
    )
    parser.add_argument("--lease-s", type=float, default=60.0, help="default lease of a reservation")
    parser.add_argument("--memory-mib", type=int, default=64, help="bodies kept in memory (default 64)")
    parser.add_argument("--max-body-mib", type=int, default=16, help="longest body (default 16)")
    parser.add_argument(
        "--checkpoint-mib", type=int, default=32, help="log that gathers before it is merged (default 32)"
    )
    parser.add_argument("--max-connections", type=int, default=1000)
    parser.add_argument("--max-queues", type=int, default=10_000)
    parser.add_argument("--force", action="store_true", help="listen publicly even without TLS or token")
    parser.add_argument("--json", action="store_true", help="print the URLs as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="log warnings only")
    parser.set_defaults(run=run)


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, default=default_data(), help=f"data folder (default {default_data()})"
    )


def default_data() -> Path:
    given = os.environ.get("SHINAR_BROKER_DATA")
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(given) if given else Path(base) / "shinar" / "broker"


def run(args: argparse.Namespace) -> int:
    from shinar.phpmq.server import Server
    from shinar.phpmq.store import BrokerStore

    logging.basicConfig(
        level=logging.WARNING if args.quiet else logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    if args.data.exists() and not args.data.is_dir():
        raise ConfigError(f"{args.data} is a file; name a folder", setting="--data")
    args.max_connections = _allow_files(args.max_connections)
    access = _access(args)
    listeners = _listeners(args, bool(access.tokens))
    store = BrokerStore(
        args.data,
        durability=args.durability,
        archive=args.archive,
        checkpoint_mib=max(1, args.checkpoint_mib),
    )
    server = Server(
        store, listeners, options=_options(args), access=access,
        metrics=_metrics(args, bool(access.tokens)),
    )  # fmt: skip
    stopped_by = asyncio.run(_serve(server, args))
    if stopped_by == signal.SIGINT:
        raise Cancelled("stopped")
    return 0


async def _serve(server: Server, args: argparse.Namespace) -> int:
    await server.start()
    if args.json:
        emit({"urls": server.urls, "data": str(args.data), "pid": os.getpid()})
    else:
        for url in server.urls:
            print(url)
    sys.stdout.flush()
    logging.getLogger("shinar.phpmq").info("serving %s from %s", ", ".join(server.urls), args.data)
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, int(number))
    failing = asyncio.ensure_future(server.hub.failed.wait())
    stopping = asyncio.ensure_future(signals.get())
    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise StoreError(f"{args.data} cannot be written any more; check the disk, then start again")
    failing.cancel()
    await server.stop()
    return stopping.result()


def _allow_files(count: int) -> int:
    """Raise the limit on open files as far as the system lets us; how many connections it leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return count
    room = max(1, soft - min(SPARE_FILES, soft // 2))
    logging.getLogger("shinar.phpmq").warning(
        "the system allows %d open files: at most %d connections are served, not %d", soft, room, count
    )
    return room


def _options(args: argparse.Namespace) -> Options:
    from shinar.phpmq.protocol import Limits
    from shinar.phpmq.server import Options

    if args.max_body_mib < 1 or args.max_body_mib > 512:
        raise ConfigError("must be between 1 and 512", setting="--max-body-mib")
    body = args.max_body_mib * MIB
    return Options(
        limits=Limits(max_body_bytes=body, max_payload_bytes=max(64 * MIB, 2 * body)),
        lease_s=args.lease_s,
        memory_bytes=args.memory_mib * MIB,
        max_connections=args.max_connections,
        max_queues=args.max_queues,
        archive_keep_s=args.archive_keep_s,
    )


def _access(args: argparse.Namespace) -> Access:
    from shinar.phpmq.server import access

    if args.rules and args.token_file:
        raise ConfigError("name tokens in --rules or in --token-file, not in both", setting="--token-file")
    if args.rules:
        return access.from_file(args.rules)
    if args.token_file:
        try:
            return access.from_token(args.token_file.read_text("utf-8").strip())
        except OSError as exc:
            raise ConfigError(f"cannot be read: {exc.strerror}", setting="--token-file") from None
    token = os.environ.get(TOKEN_VARIABLE)
    return access.from_token(token) if token else access.Access()


def _listeners(args: argparse.Namespace, tokens: bool) -> tuple[Listener, ...]:
    from shinar.phpmq.server import Listener

    context = _tls(args)
    found: list[Listener] = []
    for text in args.listen or ([] if args.unix else [DEFAULT_LISTEN]):
        place, words = _split(text, "--listen", args.dispatch_form)
        host, port = _host_port(place, "--listen")
        if "tls" in words and context is None:
            raise ConfigError("needs --tls-cert and --tls-key", setting=f"--listen {text}")
        tls = context if "tls" in words or not _loopback(host) else None
        token = tokens and "open" not in words
        if not (_loopback(host) or tls or token or args.force):
            raise ConfigError(
                "anybody who reaches this address could read and write every queue: add ,tls or a token, "
                "or --force if the network is trusted",
                setting=f"--listen {text}",
            )
        found.append(Listener(host=host, port=port, tls=tls, token=token, dispatch_form=words["form"]))
    for text in args.unix:
        place, words = _split(text, "--unix", args.dispatch_form)
        found.append(Listener(unix=Path(place), dispatch_form=words["form"]))
    return tuple(found)


def _metrics(args: argparse.Namespace, tokens: bool) -> MetricsListener | None:
    """On a public address the metrics, which name every queue, require a token too."""
    from shinar.phpmq.server import MetricsListener

    if not args.metrics:
        return None
    host, port = _host_port(args.metrics, "--metrics")
    public = not _loopback(host)
    if public and not (tokens or args.force):
        raise ConfigError(
            "anybody who reaches this address could read the names and sizes of all queues: add a token, or "
            "--force if the network is trusted",
            setting=f"--metrics {args.metrics}",
        )
    return MetricsListener(host=host, port=port, token=public and tokens)


def _split(text: str, flag: str, form: str) -> tuple[str, dict[str, Any]]:
    place, *words = text.split(",")
    settings: dict[str, Any] = {"form": form}
    for word in words:
        name, _, value = word.partition("=")
        if word in ("tls", "open"):
            settings[word] = True
        elif name == "form" and value in ("legacy", "ttl"):
            settings["form"] = value
        else:
            raise ConfigError(f"{word!r} is none of form=legacy, form=ttl, tls, open", setting=flag)
    return place, settings


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if not args.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(args.tls_cert, args.tls_key)
        if args.tls_client_ca:
            context.load_verify_locations(args.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as exc:
        raise ConfigError(f"a certificate file cannot be used: {exc}", setting="--tls-cert") from None
    return context


def _host_port(text: str, flag: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not HOST:PORT", setting=flag)
    return host.strip("[]") or "127.0.0.1", int(port)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
