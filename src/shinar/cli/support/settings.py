"""Settings: flag, then SHINAR_* (or SHINAR_*_FILE), then shinar.toml, then default. One table.

An unknown name is an error with a suggestion, wherever it comes from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from shinar.errors import ConfigError, UsageError

FILE: Final = "shinar.toml"
PREFIX: Final = "SHINAR_"
#: Names under SHINAR_ that are not settings.
_OTHER_NAMES: Final = frozenset(
    {"SHINAR_CONFIG", "SHINAR_BROKER_DATA", "SHINAR_BROKER_TOKEN", "SHINAR_CACHE", "SHINAR_HEAVY"}
)
_SECRET: Final = frozenset({"url", "ledger", "token"})


#: Types of settings, in words.
_KINDS: Final[dict[type, str]] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


class Setting(NamedTuple):
    read: Callable[[str], Any]
    default: Any
    help: str


SETTINGS: Final[dict[str, Setting]] = {
    "url": Setting(str, "", "broker URL, such as redis://localhost/orders"),
    "queue": Setting(str, "", "queue, if the URL names none"),
    "concurrency": Setting(int, 1, "handlers that run at the same time"),
    "prefetch": Setting(int, 0, "messages reserved ahead; 0 chooses"),
    "max_attempts": Setting(int, 3, "deliveries before a message is dead, the first included"),
    "on_unknown_urn": Setting(str, "fail", "fail, delete, release or dead_letter"),
    "on_exhausted": Setting(str, "dead_letter", "dead_letter, or drop"),
    "backoff_base_s": Setting(float, 1.0, "delay before the first retry"),
    "backoff_multiplier": Setting(float, 2.0, "growth of that delay per retry"),
    "backoff_max_s": Setting(float, 60.0, "longest delay; 0 for no cap"),
    "backoff_jitter": Setting(str, "full", "none or full"),
    "dead_letter_queue": Setting(str, "", "name of the dead-letter queue; the broker's usual one if empty"),
    "stop_timeout_s": Setting(float, 25.0, "time for handlers to finish after the first signal"),
    "registry": Setting(str, "", "registry.json with payload schemas"),
    "metrics_port": Setting(int, 0, "serve /metrics, /healthz and /readyz on this port"),
    "metrics_host": Setting(str, "127.0.0.1", "address for the metrics port; 0.0.0.0 for all of them"),
    "log_level": Setting(str, "info", "debug, info, warning or error"),
    "log_format": Setting(str, "text", "text or json"),
    "lake": Setting(str, "", "folder of the tables"),
    "ledger": Setting(str, "", "redrive ledger: a SQLite file or a postgresql:// URL"),
    "spark_above": Setting(int, 1_000_000, "dead letters above which `dlq summary` counts on Spark"),
    "token": Setting(str, "", "token for phpmq:// URLs that bring none"),
}


class Value(NamedTuple):
    value: Any
    origin: str
    #: False for shinar.toml in the working directory, which may be somebody else's: a secret of the
    #: environment must not go to a server that only this file names.
    chosen_by_user: bool = True


class Settings:
    """Resolved settings; `settings["url"]`, and `origin("url")` for where it came from."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def origin(self, name: str) -> str:
        return self._values[name].origin

    def chosen_by_user(self, name: str) -> bool:
        return self._values[name].chosen_by_user

    def shown(self, name: str) -> Any:
        """The value for people: secrets are masked."""
        value = self[name]
        if name == "token" and value:
            return "***"
        if name in _SECRET and ("://" in str(value) or "@" in str(value)):
            from shinar.brokers import parse

            try:
                return str(parse(value))
            except UsageError:
                return "***"
        return value


def resolve(flags: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings:
    """`flags` are argparse's values; None means not given."""
    environment = os.environ if env is None else env
    from_env, from_file = _from_env(environment), _from_file(environment)
    values: dict[str, Value] = {}
    for name, setting in SETTINGS.items():
        if flags.get(name) is not None:
            values[name] = Value(flags[name], f"flag --{name.replace('_', '-')}")
        else:
            values[name] = from_env.get(name) or from_file.get(name) or Value(setting.default, "default")
    return Settings(values)


def _from_env(env: Mapping[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for variable, text in env.items():
        if not variable.startswith(PREFIX) or variable in _OTHER_NAMES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name.endswith("_file") and name.removesuffix("_file") in SETTINGS:
            name = name.removesuffix("_file")
            try:
                text = Path(text).read_text().strip()
            except OSError as exc:
                raise ConfigError(f"cannot be read: {exc.strerror}", setting=variable) from None
        _require_known(name, variable)
        found[name] = Value(_read(name, text, variable), f"env {variable}")
    return found


def _from_file(env: Mapping[str, str]) -> dict[str, Value]:
    named = env.get("SHINAR_CONFIG")
    path = Path(named or FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"no such file: {named}", setting="SHINAR_CONFIG")
        return {}
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not TOML: {exc}", setting=str(path)) from None
    found: dict[str, Value] = {}
    for name, value in table.items():
        _require_known(name, str(path))
        wanted = type(SETTINGS[name].default)
        if type(value) is int and wanted is float:
            value = float(value)
        if type(value) is not wanted:
            text = f"must be {_KINDS[wanted]}, not {_KINDS.get(type(value), type(value).__name__)}"
            raise ConfigError(text, setting=name, origin=str(path))
        found[name] = Value(value, f"file {path}", chosen_by_user=bool(named))
    return found


def _require_known(name: str, origin: str) -> None:
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown setting{hint}", setting=name, origin=origin)


def _read(name: str, text: str, origin: str) -> Any:
    try:
        return SETTINGS[name].read(text)
    except ValueError:
        kind = _KINDS[type(SETTINGS[name].default)]
        raise ConfigError(f"must be {kind}, not {text!r}", setting=name, origin=origin) from None
