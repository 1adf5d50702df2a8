from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.errors import ConfigError
from shinar.phpmq.server import serve_in_thread
from shinar.pipeline.source.options import (
    ArchiveOptions,
    BrowseOptions,
    UrlRef,
    log_options,
    read_options,
    stream_options,
    write_options,
)

URL = "memory://m/orders"


def stream(**more: str):
    return stream_options({"url": URL, "landing": "/l", **more})


def test_what_is_not_said_has_a_sane_default():
    options = stream()
    assert (options.queues, options.max_records, options.ack_mode, options.stream_id) == (
        ("orders",),
        100_000,
        "after-capture",
        "default",
    )
    assert options.fail_on_data_loss
    assert options.include_headers


def test_spark_hands_names_over_in_lower_case():
    options = stream(maxoffsetspertrigger="7", maxbytespertrigger="64m", queue="a, b", failondataloss="false")
    assert (options.max_records, options.max_bytes, options.queues) == (7, 64 << 20, ("a", "b"))
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("maxRecordPerTriger", "1", "did you mean maxRecordsPerTrigger"),
        ("landng", "/x", "did you mean landing"),
        ("zzz", "1", "known: url"),
        ("maxRecordsPerTrigger", "0", "at least 1"),
        ("maxRecordsPerTrigger", "-1", "whole number"),
        ("maxBytesPerTrigger", "lots", "64k"),
        ("maxBytesPerTrigger", "0", "not a size"),
        ("ackMode", "later", "neither after-capture nor never"),
        ("includeHeaders", "yes", "neither true nor false"),
        ("startingOffsets", "latest", "from its front"),
        ("streamId", "../x", "letters, digits"),
        ("landing", "s3://bucket/x", "not an object store"),
        ("landing", "relative", "absolute"),
        ("landing", "", "is missing"),
        ("queue", "a,a", "twice"),
        ("urlEnv", "X", "give one of"),
    ],
)
def test_what_is_wrong_is_refused_with_advice(name: str, value: str, text: str):
    with pytest.raises(ConfigError, match=text):
        stream(**{name: value})


def test_the_two_names_of_one_limit_are_not_given_together():
    with pytest.raises(ConfigError, match="means the same"):
        stream(maxRecordsPerTrigger="1", maxOffsetsPerTrigger="2")


@pytest.mark.parametrize(
    "url", ["redis://:hunter22@h/0/q", "redis://u:hunter22@h/q", "phpmq://h:1/q?token=hunter22"]
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str):
    with pytest.raises(ConfigError, match="urlEnv or urlFile") as caught:
        read_options({"url": url})
    assert "hunter22" not in str(caught.value)


def test_a_url_by_reference_is_looked_up_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUEUE_URL", URL)
    assert read_options({"urlEnv": "QUEUE_URL"}) == BrowseOptions(
        url=read_options({"urlEnv": "QUEUE_URL"}).url, queues=("orders",), include_headers=True, limit=None
    )
    with pytest.raises(ConfigError, match=r"spark\.executorEnv\.NOT_SET"):
        read_options({"urlEnv": "NOT_SET"})
    with pytest.raises(ConfigError, match="on every node"):
        read_options({"urlFile": str(tmp_path / "none")})
    (tmp_path / "url").write_text(f"{URL}\n")
    options = stream_options({"urlFile": str(tmp_path / "url"), "landing": "/l"})
    assert options.queues == ("orders",)
    assert "memory" not in repr(options)


def test_an_archive_is_read_by_path_alone():
    assert isinstance(read_options({"path": "/x"}), ArchiveOptions)
    with pytest.raises(ConfigError, match="by path alone"):
        read_options({"path": "/x", "queue": "q"})
    assert log_options({"path": "file:///x", "startingoffsets": "latest"}).latest


def test_the_sink_takes_its_queue_from_the_url():
    assert write_options({"url": URL, "checkpointlocation": "/c"}).queue == "orders"


@pytest.mark.parametrize(("option", "held"), [("", 1), ("?hold=lease", 1), ("?hold=connection", 0)])
def test_reservations_of_a_stream_outlive_its_tasks_unless_the_url_refuses(tmp_path, option, held):
    with serve_in_thread(tmp_path / "data") as server, closing(connect(server.url)) as watcher:
        watcher.publish("orders", [Outgoing(body=b"{}")] * 2)
        # The second one shows when the server has noticed that both connections are gone.
        for query in (option, "?hold=connection"):
            task = UrlRef("plain", f"{server.url}{query}").connect_lasting()
            assert len(task.reserve("orders", 1, 30.0)) == 1
            task.close()
        deadline_s = time.monotonic() + 60
        while (depth := watcher.depth("orders")) and depth.ready != 2 - held:
            assert time.monotonic() < deadline_s, depth
            time.sleep(0.05)
        assert depth.reserved == held
