"""The SDK's client of a servicebus:// URL, its errors in Shinar's tree, and batch settlement.

The public SDK settles one message a round trip. The service takes any number of lock tokens in one
request; the SDK has that request too, under the private names used here and nowhere else.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from shinar.brokers.url import BrokerUrl
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    MissingExtra,
    QueueMissing,
)

#: Largest message of the standard tier; premium takes up to 100 MB (`?max_body=`).
MAX_BODY_BYTES: Final = 256 * 1024
#: Lock tokens in one request: well under what its answer and the service's frame hold.
SETTLE_BATCH: Final = 200
#: The SDK allows the service 10,000 answers when it opens this link, and never again (7.15): the request
#: after that waits for ever. Below so many they are allowed anew.
FEW_ANSWERS: Final = 1_000
#: The emulator's well-known credentials.
_EMULATOR: Final = ("RootManageSharedAccessKey", "SAS_KEY_VALUE")

Disposition = Literal["completed", "abandoned", "suspended"]


def open_client(url: BrokerUrl, tries: int = 2) -> ServiceBusClient:
    # One quick second try bridges a closed idle link; longer breaks are the worker's business.
    retry: dict[str, Any] = {"retry_total": tries - 1, "retry_backoff_factor": 0.2, "retry_backoff_max": 2}
    with driver_errors():
        if url.flag("aad"):
            return ServiceBusClient(_host(url), _aad_credential(), **retry)
        try:
            return ServiceBusClient.from_connection_string(_connection_string(url), **retry)
        except ValueError:
            # The SDK's text quotes the string, and with it the key.
            raise ConfigError("is not a Service Bus connection string", setting="connection string") from None


def _host(url: BrokerUrl) -> str:
    return url.netloc if "." in url.host or url.port else f"{url.host}.servicebus.windows.net"


def _connection_string(url: BrokerUrl) -> str:
    name = url.option("connection_string_env")
    if name:
        found = os.environ.get(name)
        if not found:
            raise ConfigError(f"the environment has no {name}", setting="?connection_string_env=")
        # With an entity the SDK refuses every other queue, that of the dead letters too; the URL names ours.
        parts = found.split(";")
        return ";".join(part for part in parts if not part.strip().lower().startswith("entitypath="))
    emulator = url.flag("emulator")
    user, key = (url.user, url.password) if url.user else (_EMULATOR if emulator else ("", ""))
    if not (user and key):
        raise ConfigError(
            "no credentials: write servicebus://KEYNAME:KEY@NAMESPACE, ?connection_string_env= or ?aad=1",
            setting="url",
        )
    text = f"Endpoint=sb://{_host(url)};SharedAccessKeyName={user};SharedAccessKey={key}"
    return text + (";UseDevelopmentEmulator=true" if emulator else "")


def _aad_credential() -> Any:
    try:
        from azure.identity import DefaultAzureCredential  # an extra of its own, needed here only
    except ModuleNotFoundError:
        raise MissingExtra("servicebus://?aad=1", "azure-identity", "servicebus-aad") from None
    return DefaultAzureCredential()


@contextmanager
def driver_errors(queue: str = "") -> Iterator[None]:
    """The only place where the SDK's errors are caught. Their texts name no key."""
    place = {"broker": "servicebus", "queue": queue}
    try:
        yield
    except (ServiceBusAuthenticationError, ServiceBusAuthorizationError, ClientAuthenticationError) as exc:
        raise AccessDenied(
            "refused: check the key or the role (Send, Listen) of this identity", **place
        ) from exc
    except MessagingEntityNotFoundError as exc:
        raise QueueMissing(
            "no such queue; create it: Service Bus needs Manage rights for that", **place
        ) from exc
    except ServiceBusQuotaExceededError as exc:
        raise BrokerFull("the queue is full; drain it or raise its size", **place) from exc
    except MessageSizeExceededError as exc:
        raise BodyTooLarge(0, MAX_BODY_BYTES, **place) from exc
    except (
        ServiceBusConnectionError,
        ServiceBusCommunicationError,
        ServiceBusServerBusyError,
        OperationTimeoutError,
    ) as exc:
        raise BrokerUnavailable(
            f"no answer ({type(exc).__name__}); is the namespace reachable?", **place
        ) from exc
    except (ServiceBusError, AzureError) as exc:
        raise BrokerError(f"{type(exc).__name__}: {str(exc)[:200]}", **place) from exc


def allow_answers(receiver: ServiceBusReceiver) -> None:
    """Before every request to the management node: see FEW_ANSWERS."""
    handler: Any = receiver._handler
    for node in list(handler._mgmt_links.values()) if handler is not None else ():
        answers = node._mgmt_link._response_link
        if answers.current_link_credit < FEW_ANSWERS:
            answers.flow()


def settle(how: Disposition, receiver: ServiceBusReceiver, tokens: Sequence[str], **details: str) -> set[str]:
    """Settle the locks; those that were lost. `details` are the reason and description of a dead letter."""
    named = {f"deadletter-{name}": text for name, text in details.items()} or None

    def request(part: Sequence[str]) -> None:
        allow_answers(receiver)
        receiver._do_retryable_operation(
            receiver._settle_message_via_mgmt_link,
            settlement=how,
            lock_tokens=[uuid.UUID(token) for token in part],
            dead_letter_details=named,
        )

    return _lost(request, tokens)


def renew(receiver: ServiceBusReceiver, tokens: Sequence[str]) -> set[str]:
    if receiver.session:  # None without sessions, whatever its annotation says
        # One lock for the whole session.
        allow_answers(receiver)
        try:
            receiver.session.renew_lock()
        except SessionLockLostError:
            return set(tokens)
        return set()

    def request(part: Sequence[str]) -> None:
        allow_answers(receiver)
        renewed: Any = receiver._renew_locks  # annotated for text, called with UUIDs by the SDK itself
        renewed(*(uuid.UUID(token) for token in part))

    return _lost(request, tokens)


def _lost(request: Any, tokens: Sequence[str]) -> set[str]:
    """One lost lock refuses its whole request: halve until it is found."""
    lost: set[str] = set()
    parts = [tokens[at : at + SETTLE_BATCH] for at in range(0, len(tokens), SETTLE_BATCH)]
    while parts:
        part = parts.pop()
        try:
            request(part)
        except (MessageLockLostError, MessageNotFoundError, SessionLockLostError):
            if len(part) == 1:
                lost.update(part)
            else:
                middle = len(part) // 2
                parts += [part[:middle], part[middle:]]
    return lost
