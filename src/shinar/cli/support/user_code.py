"""The user's own code, named on the command line as `module:name`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from shinar.errors import ConfigError


def load_object(text: str, setting: str, example: str = "app:fix") -> Any:
    """`module:name`, from the working directory or the path."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{text!r}: write module:name, such as {example}", setting=setting)
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name not in (module_name, module_name.split(".")[0]):
            raise
        raise ConfigError(
            f"there is no module {module_name!r} in the working directory or on the path", setting=setting
        ) from None
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"module {module_name} has no {name!r}", setting=setting) from None
