"""The version of the package in the site's header, read from the one place that has it."""

import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    source = Path(config["config_file_path"]).parent / "src" / "shinar" / "__init__.py"
    found = re.search(r'__version__ = "([^"]+)"', source.read_text())
    assert found is not None
    config["site_name"] = f"Shinar {found[1]}"
    return config
