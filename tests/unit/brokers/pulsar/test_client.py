from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from shinar.brokers.pulsar.admin import Admin
from shinar.brokers.pulsar.broker import OPTIONS, traits
from shinar.brokers.pulsar.client import our_error
from shinar.brokers.registry import parse
from shinar.errors import AccessDenied, BrokerError, BrokerFull, BrokerUnavailable, ConfigError, QueueMissing

TOPIC = "persistent://public/default/q"


class Web(BaseHTTPRequestHandler):
    """Answers as a broker's web service does; the path chooses the answer."""

    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer tok":
            self.send_response(401)
            self.end_headers()
            return
        if "/missing/" in self.path:
            self.send_response(404)
            self.end_headers()
            return
        cursor = {"markDeletePosition": "3:1", "individuallyDeletedMessages": "[(3:2..3:4],(3:6..5:0]]"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"cursors": {"babelqueue": cursor}, "subscriptions": {}}).encode())

    def log_message(self, *_args):
        pass


@pytest.fixture
def web() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_acknowledged_is_read_from_the_cursor(web):
    admin = Admin(web, "tok", 5)
    assert admin.consumed(TOPIC, "babelqueue") == ((3, 1), [((3, 2), (3, 4)), ((3, 6), (5, 0))])
    assert admin.consumed(TOPIC, "another") == ((-1, -1), [])
    assert admin.counts(TOPIC, "another") is None


def test_refusals_of_the_web_service(web):
    with pytest.raises(AccessDenied):
        Admin(web, "", 5).counts(TOPIC, "babelqueue")
    with pytest.raises(QueueMissing):
        Admin(web, "tok", 5).counts("persistent://public/missing/q", "babelqueue")
    with pytest.raises(BrokerUnavailable):
        Admin("http://127.0.0.1:9", "tok", 1).counts(TOPIC, "babelqueue")
    with pytest.raises(ConfigError, match="admin"):
        Admin("127.0.0.1:8080", "", 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Timeout", BrokerUnavailable),
        ("AuthorizationError", AccessDenied),
        ("TopicNotFound", QueueMissing),
        ("ProducerBlockedQuotaExceededError", BrokerFull),
        ("IncompatibleSchema", BrokerError),
    ],
)
def test_results_become_our_errors(name, kind):
    assert type(our_error(name, "text", "q")) is kind


def test_looking_is_promised_only_with_the_web_service():
    assert not traits(parse("pulsar://h/q")).browse
    assert traits(parse("pulsar://h/q?admin=http://h:8080")).depth


def test_every_option_is_documented(pytestconfig):
    page = (pytestconfig.rootpath / "docs/brokers/pulsar.md").read_text()
    assert {name for name in OPTIONS if f"`{name}`" not in page} == set()
