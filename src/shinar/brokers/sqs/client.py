"""The boto3 client of an sqs:// URL, and what its errors mean in Shinar's tree. Knows no message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnection

from shinar.brokers.sqs.messages import MAX_BODY_BYTES
from shinar.brokers.url import BrokerUrl
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    QueueMissing,
)

#: A long poll lasts 20 s; an answer that takes this long is not coming.
_READ_TIMEOUT_S: Final = 40
_CONNECT_TIMEOUT_S: Final = 5
#: Tries of one request against throttling and short breaks; the worker waits out the longer ones.
_TRIES: Final = 3

_OK: Final = 200
#: An attribute that boto3 decodes from base64.
_BINARY: Final = b'"BinaryValue"'
#: Where a request's entries wait while boto3 makes the rest of it.
_ENTRIES: Final = "shinar-entries"
_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(dict[str, Any]).decode

_MISSING: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_FULL: Final = frozenset({"OverLimit"})
_AWAY: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "KmsThrottled",
        "QueueDeletedRecently",
        "RequestThrottled",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
    }
)
_LAPSED: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
#: How SQS and its imitations word a message over the limit; the codes differ.
_TOO_LONG: Final = ("toolong", "too long", "shorter than", "longer than")


def open_client(url: BrokerUrl, connections: int) -> Any:
    access_key = url.option("access_key") or url.user
    secret_key = url.option("secret_key") or url.password
    if bool(access_key) != bool(secret_key):
        raise ConfigError("give access_key and secret_key together, or neither", setting="url")
    with driver_errors():
        session = boto3.Session(
            aws_access_key_id=access_key or None,
            aws_secret_access_key=secret_key or None,
            aws_session_token=url.option("session_token") or None,
            region_name=url.host or None,
            profile_name=url.option("profile") or None,
        )
        client = session.client(
            "sqs",
            endpoint_url=url.option("endpoint") or None,
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": _TRIES},
                max_pool_connections=connections,
                tcp_keepalive=True,
                # Entries are checked when they are made; boto3's second look costs more than the request.
                parameter_validation=False,
                # Fixed: boto3 would put its own together twice a request, a tenth of its work.
                user_agent=f"shinar Boto3/{boto3.__version__}",
            ),
        )
    _hasten(client)
    return client


def _hasten(client: Any) -> None:
    """boto3 walks every value of a request and of an answer along its model: for ten messages with six
    attributes each that takes longer than the request itself, and gives the same JSON. Its own events let
    us hand over the text instead. Everything else (addresses, signing, retries, errors) stays boto3's."""
    if client.meta.service_model.protocol != "json":  # a boto3 of before 2024
        return
    events = client.meta.events
    events.register("before-parameter-build.sqs", _keep_entries)
    events.register("before-call.sqs", _write_entries)
    events.register("before-parse.sqs", _read_answer)


def _keep_entries(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if "Entries" in params:
        context[_ENTRIES] = params.pop("Entries")


def _write_entries(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    entries = context.pop(_ENTRIES, None)
    if entries is not None:
        params["body"] = params["body"].removesuffix(b"}") + b', "Entries": %s}' % _to_json(entries)


def _read_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    text = response_dict["body"]
    # Errors, and values JSON has no form for, are for boto3's own parser.
    if response_dict["status_code"] != _OK or _BINARY in text:
        return
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        answer = _from_json(text or b"{}")
        response_dict["body"] = b"{}"
        customized_response_dict.update(answer)


@contextmanager
def driver_errors(queue: str = "") -> Iterator[None]:
    """The only place where botocore's errors are caught."""
    try:
        yield
    except ClientError as exc:
        error = exc.response.get("Error", {})
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise meaning(str(error.get("Code", "")), str(error.get("Message", "")), queue, status) from exc
    except (
        NoCredentialsError,
        PartialCredentialsError,
        CredentialRetrievalError,
        TokenRetrievalError,
    ) as exc:
        raise AccessDenied(
            "no AWS credentials found; set them up for this machine, or give access_key and secret_key",
            broker="sqs",
            queue=queue,
        ) from exc
    except (NoRegionError, ProfileNotFound) as exc:
        raise ConfigError(f"{exc}; write sqs://REGION/QUEUE", setting="url") from exc
    except ParamValidationError as exc:
        raise ContractError(f"boto3 refused the request: {exc}") from exc
    except (HTTPClientError, NoConnection) as exc:
        raise BrokerUnavailable(
            f"no answer ({type(exc).__name__}); check the endpoint, the network and the region",
            broker="sqs",
            queue=queue,
        ) from exc
    except BotoCoreError as exc:
        raise BrokerError(f"boto3 failed: {type(exc).__name__}", broker="sqs", queue=queue) from exc
    except ValueError as exc:
        # Only the making of a client raises it.
        raise ConfigError("is not a URL such as http://127.0.0.1:9324", setting="?endpoint=") from exc


def meaning(code: str, text: str, queue: str, status: int = 0) -> BrokerError:
    """What an SQS error code, of a request or of one entry of a batch, is in our tree."""
    short = code.rpartition(".")[2].rpartition("#")[2]
    place = {"broker": "sqs", "queue": queue}
    if short in _MISSING:
        return QueueMissing("no such queue; create it, or leave out ?declare=false", **place)
    if short in _FULL:
        return BrokerFull(f"{short}: {text[:200]}", **place)
    if short in _DENIED or status in (401, 403):
        # The text of these errors can hold the signed request: the code has to do.
        return AccessDenied(f"{short}: check the credentials and the sqs: rights of their policy", **place)
    if any(mark in f"{short} {text}".lower() for mark in _TOO_LONG):
        return BodyTooLarge(0, MAX_BODY_BYTES, **place)
    if short in _AWAY or status >= 500:
        return BrokerUnavailable(f"{short}: {text[:200]}", **place)
    return BrokerError(f"{short}: {text[:200]}", **place)


def has_lapsed(failure: dict[str, Any]) -> bool:
    """Whether a batch entry failed because somebody else has, or will have, the message."""
    code = str(failure.get("Code", "")).rpartition(".")[2]
    return code in _LAPSED or (
        code == "InvalidParameterValue" and "eceipt" in str(failure.get("Message", ""))
    )
