"""A broker's URL as a value that cannot leak its password. Knows no broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from shinar.errors import ConfigError

#: How the path of a URL divides into the server's part and the queue (its last segment):
#: queue      /orders                     all of it is the queue
#: number     /0/orders or /orders        a leading number is the server's (a database)
#: optional   /vhost/orders or /orders    everything before the last segment is the server's
#: first      /shop or /shop/orders       the first segment is the server's (an SQL database)
#: file       /var/lib/q.db               all of it is the server's; the queue comes as ?queue=
PathRule = Literal["queue", "number", "optional", "first", "file"]

#: Query names whose values are secrets: masked wherever a URL is shown.
SECRET_OPTIONS = frozenset({"password", "token", "secret", "key", "secret_key", "sas_key", "session_token"})
MASK = "***"


@dataclass(frozen=True, slots=True, repr=False)
class BrokerUrl:
    scheme: str
    host: str = ""
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    #: The server's part of the path, unquoted and without slashes at the ends (but see `file`).
    path: str = ""
    #: "" when the URL names none.
    queue: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: Where the broker listens when nothing else is said; 0 where that is nowhere.
    usual_port: int = 0
    #: Several hosts as written (`h1:9092,h2:9092`), for brokers that take a list.
    netloc: str = ""

    @property
    def masked(self) -> str:
        auth = (self.user + (f":{MASK}" if self.password else "") + "@") if self.user or self.password else ""
        path = "".join(f"/{part}" for part in (self.path.lstrip("/"), self.queue) if part)
        if self.path.startswith("/"):
            path = "/" + self.path.lstrip("/") + (f"?queue={self.queue}" if self.queue else "")
        shown = {k: MASK if k in SECRET_OPTIONS else v for k, v in self.options.items()}
        query = urlencode(shown, safe="*/:")
        joint = "&" if "?" in path else "?"
        return f"{self.scheme}://{auth}{self.netloc}{path}{joint + query if query else ''}"

    def __repr__(self) -> str:
        return self.masked

    __str__ = __repr__

    def option(self, name: str, default: str = "") -> str:
        return self.options.get(name, default)

    def number(self, name: str, default: float, *, least: float = 0.0) -> float:
        text = self.options.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not value >= least or value == float("inf"):
            raise ConfigError(f"{text!r} is not a number of at least {least:g}", setting=f"?{name}=")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() in ("1", "true", "yes", "on", ""):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{text!r} is neither true nor false", setting=f"?{name}=")


def parse(text: str, rule: PathRule, usual_port: int = 0) -> BrokerUrl:
    try:
        parts = urlsplit(text)
        port = None if "," in parts.netloc else parts.port
    except ValueError:
        # What Python says quotes the text where it stumbled: that can be a part of the password.
        raise ConfigError(
            "not a URL, or its port is no number up to 65535; write scheme://host:port/queue, and / @ : # ? "
            "in a user or password percent-encoded (%2F %40 %3A %23 %3F)",
            setting="url",
        ) from None
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError("is given twice", setting=f"?{twice}=")
    path, queue = _split_path(parts.path, rule)
    queue = options.pop("queue", queue)
    netloc = parts.netloc.rpartition("@")[2]
    return BrokerUrl(
        scheme=parts.scheme,
        host="" if "," in netloc else (parts.hostname or ""),
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        path=path,
        queue=queue,
        options=MappingProxyType(options),
        usual_port=usual_port,
        netloc=netloc,
    )


def _split_path(path: str, rule: PathRule) -> tuple[str, str]:
    if rule == "file":
        return unquote(path), ""
    # Split before unquoting: %2F inside a segment is part of a name (the default vhost).
    segments = [segment for segment in path.split("/") if segment]
    if not segments:
        return "", ""
    head: list[str]
    match rule:
        case "queue":
            head, tail = [], segments
        case "number":
            head, tail = (segments[:1], segments[1:]) if segments[0].isdecimal() else ([], segments)
        case "first":
            head, tail = segments[:1], segments[1:]
        case "optional":
            lone_vhost = len(segments) == 1 and segments[0].lower() == "%2f"
            head, tail = (segments, []) if lone_vhost else (segments[:-1], segments[-1:])
    return "/".join(map(unquote, head)), "/".join(map(unquote, tail))
