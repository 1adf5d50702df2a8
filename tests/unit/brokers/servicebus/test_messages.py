from __future__ import annotations

import datetime
import json

import pytest

from shinar.brokers.contract import Delivery, Outgoing
from shinar.brokers.projection import MAX_DELAY_S
from shinar.brokers.recent import Recent
from shinar.brokers.registry import traits
from shinar.brokers.servicebus import messages as wire
from shinar.errors import ContractError, Unsupported

ENVELOPE = {
    "job": "urn:babel:orders:created",
    "trace_id": "t-1",
    "data": {"n": 1},
    "meta": {"id": "m-1", "queue": "orders", "lang": "php", "schema_version": 1, "created_at": 1749132727000},
    "attempts": 0,
}
BODY = json.dumps(ENVELOPE).encode()


def origin(**fields):
    return Delivery(**{"body": BODY, "queue": "orders", "receipt": ("t", ""), "position": "7", **fields})


def test_the_projection_and_the_long():
    made = wire.message_of(Outgoing(BODY, {"tenant": "acme"}), 0)
    assert b"".join(made.body) == BODY
    assert (made.subject, made.correlation_id, made.message_id, made.content_type) == (
        "urn:babel:orders:created",
        "t-1",
        "m-1",
        "application/json",
    )
    assert made.application_properties == {
        "bq-schema-version": 1,
        "bq-source-lang": "php",
        "bq-created-at": {"TYPE": "LONG", "VALUE": 1749132727000},
        "tenant": "acme",
    }
    assert made.scheduled_enqueue_time_utc is None


@pytest.mark.parametrize("body", [b"[1,2]", b'{"meta":7}', b"\xff", b'{"meta":{"id":5,"created_at":"x"}}'])
def test_odd_bodies_project_what_is_well_typed(body):
    made = wire.message_of(Outgoing(body), 0, origin=origin())
    assert b"".join(made.body) == body
    assert made.application_properties == {}


def test_a_delay_is_a_time_to_be_enqueued_at():
    made = wire.message_of(Outgoing(BODY, delay_s=90), 1_000)
    assert made.scheduled_enqueue_time_utc == datetime.datetime.fromtimestamp(1_090, datetime.UTC)


def message_id(outgoing, source=None):
    return wire.message_of(outgoing, 0, origin=source).message_id


def test_only_the_very_same_move_has_the_same_id():
    first = message_id(Outgoing(BODY), origin())
    assert first != "m-1"
    assert first.startswith("m-1:")
    assert first == message_id(Outgoing(BODY), origin())
    assert first != message_id(Outgoing(BODY), origin(position="8"))
    assert first != message_id(Outgoing(BODY + b" "), origin())
    assert first != message_id(Outgoing(BODY), origin(queue="orders.dlq"))


def test_ids_longer_than_the_service_takes():
    body = json.dumps({**ENVELOPE, "trace_id": "t" * 200, "meta": {"id": "m" * 200}}).encode()
    for source in (None, origin()):
        made = wire.message_of(Outgoing(body), 0, origin=source)
        assert len(made.message_id) <= 128
        assert len(made.correlation_id) <= 128


def test_a_copy_leaves_the_notes_of_its_death_behind():
    notes = {"DeadLetterReason": "poison", "DeadLetterErrorDescription": "x", "tenant": "acme"}
    made = wire.message_of(Outgoing(BODY, notes), 0, origin=origin())
    assert "tenant" in made.application_properties
    assert not wire.DEAD_LETTER_NOTES & set(made.application_properties)


def test_a_released_copy_remembers_its_deliveries_and_its_own_properties():
    held = origin(headers={"h": "v"}, properties={"bq-schema-version": 2}, native_count=3, key=b"k")
    made = wire.released_copy(held, 1_000, 5)
    assert made.application_properties[wire.DELIVERIES] == 4
    assert made.application_properties["bq-schema-version"] == 2
    assert made.application_properties["h"] == "v"
    assert made.session_id == "k"


def test_keys_and_sessions():
    assert wire.session_of(None) is None
    assert wire.session_of(b"") is None
    assert wire.session_of("größe".encode()) == "größe"
    for key in (b"\xff", b"x" * 129):
        with pytest.raises(ContractError):
            wire.session_of(key)


def test_traits_follow_the_url():
    plain, ordered = traits("servicebus://a:b@ns/q"), traits("servicebus://a:b@ns/q?sessions=1&lease_s=300")
    assert (plain.ordered, plain.portable_receipts, plain.count_base) == (False, True, 0)
    assert (ordered.ordered, ordered.portable_receipts, ordered.lease_s) == (True, False, 300)


def test_recent_forgets_the_oldest():
    recent = Recent(3)
    recent.update(["a", "b", "c"])
    recent.update(["d"])
    assert "a" not in recent
    assert all(item in recent for item in "bcd")


def test_a_published_copy_is_a_message_of_its_own_and_its_repetition_is_not():
    plain, once, again, other = (
        wire.message_of(Outgoing(BODY, origin=place), 0).message_id
        for place in ("", "orders.dlq\x007", "orders.dlq\x007", "orders.dlq\x008")
    )
    assert plain == "m-1"
    assert once == again
    assert len({plain, once, other}) == 3


def test_a_copy_gives_headers_their_types_back_unless_they_changed():
    typed = (("priority", 5), ("vip", True), ("weight", 1.5), ("gone", 1))
    headers = {"priority": "5", "vip": "True", "weight": "2.5", "tenant": "acme"}
    got = origin(receipt=("t", "", typed), headers=headers)
    kept = wire.message_of(Outgoing(b"{}", headers), 0, origin=got).application_properties
    assert kept == {"priority": 5, "vip": True, "weight": "2.5", "tenant": "acme"}
    assert type(kept["vip"]) is bool


@pytest.mark.parametrize("delay_s", [1e12, 1e16, float("inf"), float("nan")])
def test_a_delay_past_every_clock_is_refused(delay_s):
    with pytest.raises(Unsupported, match="hundred years"):
        wire.message_of(Outgoing(BODY, delay_s=delay_s), 1_800_000_000)
    assert wire.message_of(Outgoing(BODY, delay_s=MAX_DELAY_S), 1_800_000_000).scheduled_enqueue_time_utc


def test_a_creation_time_at_the_end_of_the_numbers_is_a_long():
    body = BODY.replace(b"1749132727000", str(2**63 - 1).encode())
    made = wire.message_of(Outgoing(body), 0).application_properties
    assert made["bq-created-at"] == {"TYPE": "LONG", "VALUE": 2**63 - 1}
