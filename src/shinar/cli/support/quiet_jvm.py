"""What the JVM writes to stderr, without the lines nobody can act on. Must not know a Spark session.

The JVM inherits stderr when it is launched and writes there before any logging is set up: launch it with a
pipe instead, and pass on what is worth reading.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The start of lines that every launch prints, and of log lines below an error.
_NOISE: Final = re.compile(
    rb"WARNING: |Picked up JAVA_TOOL_OPTIONS|Picked up _JAVA_OPTIONS|Using Spark's|Setting default log level|"
    rb"To adjust logging level|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|INFO) |"
    rb"NOTE: Picked up JDK_JAVA_OPTIONS"
)


@contextmanager
def quiet_jvm(debug: bool = False) -> Iterator[None]:
    """Whatever JVM is launched inside has a filtered stderr; with `debug` it has ours."""
    if debug or sys.platform == "win32":
        yield
        return
    real = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=_pass_on, args=(reader, real), name="jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)


def _pass_on(reader: int, real: int) -> None:
    """Until the JVM closes its end. The reader never stops: a full pipe would stop the JVM."""
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                os.write(real, line)
