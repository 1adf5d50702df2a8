"""Pages of Java and Python as the one line that says why."""

from __future__ import annotations

import pytest

from shinar.pipeline.spark_errors import cause_of, worker_did_not_start

JAVA = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
\tat org.apache.spark.sql.Dataset.collect(Dataset.scala:1)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.Task.run(Task.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)"""
PYTHON = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "x.py", line 1, in f
OSError: [Errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: org.apache.spark.SparkException: again"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (JAVA, "IOException: No space left on device"),
        (PYTHON, "OSError: [Errno 28] No space left on device"),
        ("\n one line \n", "one line"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_why(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


def test_a_worker_that_did_not_start_in_time() -> None:
    assert worker_did_not_start(RuntimeError("... Python worker failed to connect back. SQLSTATE: XXKST"))
    assert not worker_did_not_start(RuntimeError(JAVA))
