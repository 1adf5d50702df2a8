"""Every error Shinar raises, in one tree. Knows nothing else of Shinar.

A class says whose fault it is and whether trying again can help (`transient`); its fields
say where; its text says what to do next; its `code` is stable and explained in docs/errors.md.

    ShinarError
    ├── UsageError             fix the call: nothing was sent
    │   ├── ContractError      refused by the message contract; `pointer` names the place
    │   ├── ConfigError        a setting, a URL or a file is wrong
    │   ├── UnknownScheme      no broker has this URL scheme
    │   ├── MissingExtra       an optional package is not installed
    │   ├── Unsupported        this broker cannot do that
    │   └── Closed             used after close()
    ├── BrokerError            the other side said no, or nothing
    │   ├── BrokerUnavailable  away or cut off (transient)
    │   ├── BrokerFull         out of disk, memory or quota (transient)
    │   ├── AccessDenied       wrong credentials or missing rights
    │   ├── QueueMissing       no such queue
    │   ├── BodyTooLarge       over the broker's limit
    │   ├── PublishFailed      some of a batch was not confirmed; says which
    │   └── ProtocolViolation  the peer spoke something else
    ├── StoreError             one of our own durable files or tables is damaged or locked
    ├── HandlerTimeout         a handler ran longer than its step allows
    ├── WorkerLost             the worker process ended each time it handled a message
    └── Cancelled              the user stopped it
"""

from __future__ import annotations

from typing import ClassVar


def error_text(error: BaseException | str) -> str:
    """`str(error)`, whatever a class of somebody else does in its `__str__`."""
    try:
        return str(error)
    except Exception as exc:  # anything may be raised there
        return f"(its text cannot be read: __str__ raised {type(exc).__name__})"


class ShinarError(Exception):
    """Root of the tree: `except ShinarError` catches all of ours and nothing else."""

    code: ClassVar[str] = "SH-1000"
    #: True when the same call may succeed later without a change.
    transient: ClassVar[bool] = False


class UsageError(ShinarError):
    code = "SH-1100"


class ContractError(UsageError):
    code = "SH-1101"

    def __init__(self, text: str, *, pointer: str | None = None) -> None:
        super().__init__(f"{pointer}: {text}" if pointer else text)
        #: RFC 6901 pointer of the offending member, where there is one.
        self.pointer = pointer


class ConfigError(UsageError):
    code = "SH-1102"

    def __init__(self, text: str, *, setting: str | None = None, origin: str | None = None) -> None:
        where = f" (from {origin})" if origin else ""
        super().__init__(f"{setting}{where}: {text}" if setting else f"{text}{where}")
        self.setting = setting
        self.origin = origin


class UnknownScheme(UsageError):
    code = "SH-1103"

    def __init__(self, scheme: str, known: tuple[str, ...], guess: str | None) -> None:
        hint = f"; did you mean {guess}://?" if guess else f"; known: {', '.join(known)}"
        super().__init__(f"no broker for {scheme}://{hint}")
        self.scheme = scheme
        self.guess = guess


class MissingExtra(UsageError):
    code = "SH-1104"

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: pip install 'shinar[{extra}]'")
        self.package = package
        self.extra = extra


class Unsupported(UsageError):
    code = "SH-1105"

    def __init__(self, broker: str, feature: str, advice: str) -> None:
        super().__init__(f"{broker} cannot {feature}: {advice}")
        self.broker = broker
        self.feature = feature


class Closed(UsageError):
    code = "SH-1106"

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is closed; open another one")
        self.what = what


class BrokerError(ShinarError):
    """Base of everything the other side causes. `broker` is a trait name, never a URL with secrets."""

    code = "SH-1200"

    def __init__(self, text: str, *, broker: str = "", queue: str = "") -> None:
        place = " ".join(part for part in (broker, f"queue {queue}" if queue else "") if part)
        super().__init__(f"{place}: {text}" if place else text)
        self.broker = broker
        self.queue = queue


class BrokerUnavailable(BrokerError):
    code = "SH-1201"
    transient = True


class BrokerFull(BrokerError):
    code = "SH-1202"
    transient = True


class AccessDenied(BrokerError):
    code = "SH-1203"


class QueueMissing(BrokerError):
    code = "SH-1204"


class BodyTooLarge(BrokerError):
    code = "SH-1205"

    def __init__(self, size_bytes: int, limit_bytes: int, *, broker: str = "", queue: str = "") -> None:
        text = (
            f"a body of {size_bytes} bytes is over the limit of {limit_bytes}; "
            "store the payload elsewhere and send a reference"
        )
        super().__init__(text, broker=broker, queue=queue)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PublishFailed(BrokerError):
    """Part of a batch was not confirmed. Those at `unconfirmed` may or may not have arrived."""

    code = "SH-1206"

    def __init__(
        self, text: str, *, total: int, unconfirmed: tuple[int, ...], broker: str = "", queue: str = ""
    ) -> None:
        super().__init__(
            f"{text} ({total - len(unconfirmed)} of {total} confirmed)", broker=broker, queue=queue
        )
        self.total = total
        #: Indices, into the batch given to publish, of the messages the broker did not confirm.
        self.unconfirmed = unconfirmed


class ProtocolViolation(BrokerError):
    code = "SH-1207"


class StoreError(ShinarError):
    code = "SH-1300"


class HandlerTimeout(ShinarError):
    code = "SH-1400"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the handler ran longer than {limit_s:g} s")
        self.limit_s = limit_s


class WorkerLost(ShinarError):
    """Never raised: the reason in the dead letter of a message that ends its workers."""

    code = "SH-1401"

    def __init__(self, deliveries: int) -> None:
        super().__init__(
            f"delivered {deliveries} times without an outcome; the worker process ended while handling it, "
            "or lost its lease"
        )
        self.deliveries = deliveries


class Cancelled(ShinarError):
    code = "SH-1500"
