"""Files that a power cut does not take back: written whole, synced, and only then named. Knows no content."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """All of it or nothing, under this name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(content)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """A file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Files that somebody else closed (Spark does not sync its own), and the folders that name them."""
    folders = set()
    for path in paths:
        sync(path)
        folders.add(path.parent)
    for folder in folders:
        sync(folder)
