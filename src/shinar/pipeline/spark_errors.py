"""What Spark says when a task or a stream fails, as the error of ours that it was. Knows no job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shinar import errors

#: The last line of a Python traceback that Spark carries as text.
_RAISED: Final = re.compile(r"^\W*shinar\.[\w.]+\.(\w+): (.+)$", re.M)


@contextmanager
def plainly() -> Iterator[None]:
    """An error of ours that comes back as Spark's is raised as ours; any other passes as it is."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as exc:
        found = _RAISED.findall(str(exc))
        if not found:
            raise
        raise _made(*found[-1]) from None


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
