"""What is common to the headers of all brokers: native values as text, and text that can be sent."""

from __future__ import annotations

import subprocess
import sys

import pytest
from proton import float32, int32, symbol, timestamp, ubyte

from shinar.brokers.contract import Outgoing
from shinar.brokers.projection import RESERVED, checked_delay_s, project, user_headers
from shinar.brokers.registry import ROWS, projection
from shinar.errors import ContractError, Unsupported


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (int32(5), "5"),
        (ubyte(5), "5"),
        (timestamp(1749132727123), "1749132727123"),
        (True, "True"),
        (1.5, "1.5"),
        (float32(1.5), "1.5"),
        (symbol("s"), "s"),
        (b"x", "x"),
        (memoryview(b"x"), "x"),
        (bytearray(b"\xff"), "\ufffd"),
        ("größe", "größe"),
    ],
)
def test_a_native_value_reaches_the_handler_as_what_it_says(value, text):
    assert user_headers({"h": value, "none": None, "bq-job": "ours"}) == {"h": text}
    assert type(user_headers({"h": value})["h"]) is str


@pytest.mark.parametrize("scheme", ROWS)
@pytest.mark.parametrize("headers", [{"a": "\ud800"}, {"\udfff": "x"}, {"a": "ü\udc80"}])
def test_a_lone_surrogate_in_a_header_is_refused(scheme, headers):
    with pytest.raises(ContractError, match="lone surrogate"):
        project(projection(scheme), Outgoing(b"{}", headers))
    assert project(projection(scheme), Outgoing(b"{}", {"a": "ü \U0001f600"})).headers["a"] == "ü \U0001f600"


@pytest.mark.parametrize("delay_s", [1e12, 1e300, float("inf"), float("nan")])
def test_a_delay_past_every_clock_is_refused(delay_s):
    with pytest.raises(Unsupported, match="hundred years"):
        checked_delay_s("some", delay_s)


@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.5, 1e9])
def test_any_other_delay_is_as_it_was(delay_s):
    assert checked_delay_s("some", delay_s) == delay_s


def test_every_header_of_a_table_is_a_name_of_the_contract():
    written = {name for s in ROWS for name, (slot, _, _) in projection(s).items() if slot == "header"}
    assert written == RESERVED


def test_a_projection_needs_no_client():
    """Tools that read properties of every broker run where one client is installed, or none."""
    code = (
        "import sys; from shinar.brokers.registry import projected_names; projected_names()\n"
        "clients = {'redis', 'pika', 'boto3', 'azure', 'pulsar', 'confluent_kafka', 'proton', 'psycopg'}\n"
        "sys.exit(f'imported {clients & set(sys.modules)}' if clients & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
