"""Every error Shinar raises, in one tree. Nothing else of Shinar is known here.

A class says whose fault it is and whether trying again can help (`transient`); its fields say where; its text
says what to do next; its `code` is stable. docs/errors.md is made of the docstrings and remedies below.

    ShinarError                catch this to catch all of ours
    ├── UsageError             the call is wrong; nothing was sent
    │   ├── ContractError      the message contract refuses it: pointer
    │   ├── ConfigError        a setting, a URL or a file is wrong: setting, origin
    │   ├── UnknownScheme      no broker or store has this URL scheme: scheme, known, guess
    │   ├── MissingExtra       an optional package is not installed: package, extra
    │   ├── Unsupported        this broker cannot do that: broker, feature, advice
    │   ├── Closed             used after close(): what
    │   └── ExpressionError    --where or --set raises for one dead letter: reason, setting
    ├── BrokerError            the broker refused, or did not answer: broker, queue
    │   ├── BrokerUnavailable  unreachable, or the connection was lost (transient)
    │   ├── BrokerFull         out of disk, memory or quota (transient)
    │   ├── AccessDenied       wrong credentials or missing rights
    │   ├── QueueMissing       no such queue
    │   ├── BodyTooLarge       over the broker's limit: size_bytes, limit_bytes
    │   ├── PublishFailed      part of a batch was not confirmed: total, unconfirmed
    │   └── ProtocolViolation  the peer speaks another protocol
    ├── StoreError             a file or table of our own is damaged or locked
    │   ├── Unbalanced         a batch does not add up
    │   └── RestoredLake       lake and checkpoint are of different times
    ├── SparkFailed            Spark stopped for a reason of its own
    ├── HandlerTimeout         a handler ran too long: limit_s
    ├── WorkerLost             the worker process ended each time it handled a message: deliveries
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
    #: What the user does about it.
    remedy: ClassVar[str] = "Catch it to catch every error of Shinar."

    def __reduce__(self) -> tuple[object, ...]:
        # Spark and multiprocessing pickle errors; by default a class is called with its text alone.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ShinarError], args: tuple[object, ...], fields: dict[str, object]) -> ShinarError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UsageError(ShinarError):
    """The call is wrong, and nothing was sent. On the command line also: a file or stream cannot be read or
    written."""

    code = "SH-1100"
    remedy = "Fix the call."


class ContractError(UsageError):
    """The message contract refuses it; `pointer` names the member."""

    code = "SH-1101"
    remedy = "Change that member."

    def __init__(self, text: str, *, pointer: str | None = None) -> None:
        super().__init__(f"{pointer}: {text}" if pointer else text)
        #: RFC 6901 pointer of the offending member, where there is one.
        self.pointer = pointer


class ConfigError(UsageError):
    """A setting, a URL or a file is wrong; `setting` names it, `origin` says where it comes from."""

    code = "SH-1102"
    remedy = "Correct the setting."

    def __init__(self, text: str, *, setting: str | None = None, origin: str | None = None) -> None:
        where = f" (from {origin})" if origin else ""
        super().__init__(f"{setting}{where}: {text}" if setting else f"{text}{where}")
        self.setting = setting
        self.origin = origin


class UnknownScheme(UsageError):
    """The URL has a scheme that no broker or store has."""

    code = "SH-1103"
    remedy = "Use the scheme suggested."

    def __init__(self, scheme: str, known: tuple[str, ...], guess: str | None) -> None:
        hint = f"; did you mean {guess}://?" if guess else f"; known: {', '.join(known)}"
        super().__init__(f"the URL scheme {scheme}:// is unknown{hint}")
        self.scheme = scheme
        self.known = known
        self.guess = guess


class MissingExtra(UsageError):
    """An optional package is not installed."""

    code = "SH-1104"
    remedy = "Run the pip command in the text."

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: pip install 'shinar[{extra}]'")
        self.package = package
        self.extra = extra


class Unsupported(UsageError):
    """This broker cannot do that (browse where it can only consume, delay beyond its limit)."""

    code = "SH-1105"
    remedy = "Follow the advice in the text."

    def __init__(self, broker: str, feature: str, advice: str) -> None:
        super().__init__(f"{broker} cannot {feature}: {advice}")
        self.broker = broker
        self.feature = feature
        self.advice = advice


class Closed(UsageError):
    """A producer was used after `close()`."""

    code = "SH-1106"
    remedy = "Open another one."

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is closed; open another one")
        self.what = what


class ExpressionError(UsageError):
    """Spark SQL would raise for this dead letter: `--where` or `--set` casts a text that is not a number,
    divides by zero, or overflows."""

    code = "SH-1110"
    remedy = "Change the expression (`try_cast`), or add `--where-errors skip`."

    def __init__(self, reason: str, *, setting: str, letter: str = "", advice: str = "") -> None:
        which = f"dead letter {letter}: " if letter else ""
        super().__init__(f"{setting}: {which}{reason}" + (f"; {advice}" if advice else ""))
        self.reason = reason
        self.setting = setting
        #: Id of the dead letter, or its position in the queue.
        self.letter = letter

    def for_letter(self, letter: str, advice: str) -> ExpressionError:
        return ExpressionError(self.reason, setting=self.setting, letter=letter, advice=advice)


class BrokerError(ShinarError):
    """The broker refused. `broker` is the name of its kind, never a URL with secrets."""

    code = "SH-1200"
    remedy = "Read the text; the broker's own log says more."

    def __init__(self, text: str, *, broker: str = "", queue: str = "") -> None:
        where = " ".join(part for part in (broker, f"queue {queue}" if queue else "") if part)
        super().__init__(f"{where}: {text}" if where else text)
        self.broker = broker
        self.queue = queue


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached, or the connection was lost (transient)."""

    code = "SH-1201"
    transient = True
    remedy = "Check host and port. Workers and relays reconnect by themselves."


class BrokerFull(BrokerError):
    """The broker is out of disk, memory or quota (transient)."""

    code = "SH-1202"
    transient = True
    remedy = "Free space on the broker, or raise its limits."


class AccessDenied(BrokerError):
    """The credentials are wrong, or lack a right."""

    code = "SH-1203"
    remedy = "Check user, key and policy."


class QueueMissing(BrokerError):
    """The queue does not exist, and may not be created (`declare=false`)."""

    code = "SH-1204"
    remedy = "Create it, or remove `declare=false`."


class BodyTooLarge(BrokerError):
    """The body is over the broker's limit; the text gives both sizes."""

    code = "SH-1205"
    remedy = "Store the payload elsewhere and send a reference."

    def __init__(self, size_bytes: int, limit_bytes: int, *, broker: str = "", queue: str = "") -> None:
        text = (
            f"a body of {size_bytes} bytes is over the limit of {limit_bytes}; "
            "store the payload elsewhere and send a reference"
        )
        super().__init__(text, broker=broker, queue=queue)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PublishFailed(BrokerError):
    """Part of a batch was not confirmed. The messages at `unconfirmed` may or may not have arrived."""

    code = "SH-1206"
    remedy = "Send those again; consumers drop duplicates by `meta.id`."

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
    """The peer speaks another protocol."""

    code = "SH-1207"
    remedy = "Check host, port and TLS."


class StoreError(ShinarError):
    """A file or table of our own is damaged, locked or of another version."""

    code = "SH-1300"
    remedy = "Follow the text; `shinar broker fsck` checks a broker's store."


class Unbalanced(StoreError):
    """The rows of a pipeline batch do not add up; nothing of it was committed."""

    code = "SH-1301"
    remedy = "Report it: this is a bug."


class RestoredLake(StoreError):
    """Lake and checkpoint of a job are of different times; nothing was read."""

    code = "SH-1302"
    remedy = "Restore both to the same time, or say with `--after-restore` how to go on."


class SparkFailed(ShinarError):
    """Spark stopped for a reason of its own."""

    code = "SH-1303"
    remedy = "Read the sentence; `--debug` shows everything Spark says."


class HandlerTimeout(ShinarError):
    """A handler ran longer than its step allows."""

    code = "SH-1400"
    remedy = "Make it faster, or raise the limit."

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the handler ran longer than {limit_s:g} s")
        self.limit_s = limit_s


class WorkerLost(ShinarError):
    """In dead letters only: the broker delivered the message `max_attempts` times, and no worker lived to
    settle it."""

    code = "SH-1401"
    remedy = "Find out what ends the process (out of memory, a crash in native code), then redrive."

    def __init__(self, deliveries: int) -> None:
        super().__init__(
            f"delivered {deliveries} times without an outcome; the worker process ended while handling it, "
            "or lost its lease"
        )
        self.deliveries = deliveries


class Cancelled(ShinarError):
    """The user stopped it."""

    code = "SH-1500"
    remedy = "Nothing; run it again to continue."
