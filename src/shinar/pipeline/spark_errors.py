"""What Spark raises when a task or a stream fails, as the error of ours that caused it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shinar import errors

#: The last line of a Python traceback that Spark carries as text.
_RAISED: Final = re.compile(r"^\W*shinar\.[\w.]+\.(\w+): (.+)$", re.M)


@contextmanager
def as_our_errors() -> Iterator[None]:
    """An error of ours that comes back as Spark's is raised as ours; any other passes as it is."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as exc:
        found = _RAISED.findall(str(exc))
        if not found:
            raise
        raise _made(*found[-1]) from None


#: What Java says first about a cause, and a Python traceback last.
_CAUSED: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?([\w$]+(?:: .+)?)$", re.M)
_TRACEBACK_END: Final = re.compile(r"^\W*((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b.*)$", re.M)


def worker_did_not_start(exc: BaseException) -> bool:
    """Whether Spark gave up on a Python process before it had started."""
    return "Python worker failed to connect back" in str(exc)


def cause_of(exc: BaseException) -> str:
    """The one line of Spark's text that says why: the end of a Python traceback, else the innermost cause."""
    text = str(exc)
    for pattern in (_TRACEBACK_END if "Traceback (most recent" in text else _CAUSED, _CAUSED):
        found = pattern.findall(text)
        if found:
            return str(found[-1])
    return next((line.strip() for line in text.splitlines() if line.strip()), type(exc).__name__)


def _made(name: str, text: str) -> errors.ShinarError:
    kind = getattr(errors, name, None)
    for base in kind.__mro__ if isinstance(kind, type) else ():
        try:
            made = base(text)  # the nearest that is made from a text alone
        except TypeError:
            continue
        if isinstance(made, errors.ShinarError):
            return made
    return errors.StoreError(text)
