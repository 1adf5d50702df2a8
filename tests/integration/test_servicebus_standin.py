"""The stand-in itself, by the unmodified SDK: what our broker does not use, but readers may rely on."""

from __future__ import annotations

import datetime
import gc
import uuid
from collections.abc import Iterator

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

pytestmark = [pytest.mark.live("servicebus"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(server) -> Iterator[ServiceBusClient]:
    text = f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    with ServiceBusClient.from_connection_string(text) as made:
        yield made
    gc.collect()


def send(client, name, *messages) -> None:
    with client.get_queue_sender(name) as sender:
        sender.send_messages(list(messages))


def bodies(messages) -> list[bytes]:
    return [b"".join(message.body) for message in messages]


def soon(seconds: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


def test_defer_and_fetch_by_number(client, name):
    send(client, name, ServiceBusMessage(b"later"))
    with client.get_queue_receiver(name) as receiver:
        (got,) = receiver.receive_messages(1, 5)
        receiver.defer_message(got)
        assert receiver.receive_messages(1, 0.5) == []
        (again,) = receiver.receive_deferred_messages(got.sequence_number)
        assert bodies([again]) == [b"later"]
        receiver.complete_message(again)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(got.sequence_number)


def test_schedule_and_cancel(client, name):
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        kept, gone = sender.schedule_messages(
            [ServiceBusMessage(b"kept"), ServiceBusMessage(b"gone")], soon(1)
        )
        sender.cancel_scheduled_messages(gone)
        assert kept != gone
        assert bodies(receiver.receive_messages(2, 10)) == [b"kept"]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(gone)


def test_a_time_to_live_ends_in_the_dead_letters(client, name):
    send(client, name, ServiceBusMessage(b"old", time_to_live=datetime.timedelta(seconds=1)))
    with client.get_queue_receiver(name, sub_queue="deadletter") as graves:
        (buried,) = graves.receive_messages(1, 10)
        assert (buried.dead_letter_reason, buried.dead_letter_source) == ("TTLExpiredException", name)
        graves.complete_message(buried)


def test_receive_and_delete(client, name):
    send(client, name, ServiceBusMessage(b"a"), ServiceBusMessage(b"b"))
    with client.get_queue_receiver(name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert bodies(receiver.receive_messages(2, 5)) == [b"a", b"b"]
    with client.get_queue_receiver(name) as receiver:
        assert receiver.peek_messages(5) == []


def test_a_lock_ends_unless_it_is_renewed(client, name):
    send(client, name, ServiceBusMessage(b"a"), ServiceBusMessage(b"b"))
    with client.get_queue_receiver(name) as receiver, AutoLockRenewer() as renewer:
        lost, kept = receiver.receive_messages(2, 5)
        renewer.register(receiver, kept, max_lock_renewal_duration=60)
        (again,) = receiver.receive_messages(2, 25)
        assert (bodies([again]), again.delivery_count) == (bodies([lost]), 1)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(lost)
        receiver.complete_message(kept)
        receiver.complete_message(again)
