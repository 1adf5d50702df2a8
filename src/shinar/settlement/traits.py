"""What a broker does natively, as data. Decisions read these fields; no code asks a broker's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Where the number of earlier deliveries comes from (contract rules, chapter 12).
#: body            the envelope's own count; the broker keeps none, or mirrors it only
#: max             the larger of the body and the broker's count
#: property        `bq-attempts` beside the body, if it is valid, else the body
#: property_max    `bq-attempts` replaces the body's count, then the larger of it and the broker's
#: body_or_property  the larger of the body and a property that mirrors it: some SDKs count there only
AttemptsRule = Literal["body", "max", "property", "property_max", "body_or_property"]

#: What happens to a body nobody may handle when the user switched dead letters off.
#: retry           hand it back, counted, until max_attempts; then drop
#: drop            acknowledge and log
#: native          leave it to the broker's own dead-letter mechanism
#: dead_letter     write the record anyway
WithoutDeadLetters = Literal["retry", "drop", "native", "dead_letter"]

#: Where `release` without a delay, and a lapsed lease, put a message.
#: place           to where it was, or to the front
#: front           before all others; several at once in an order nobody promises
#: back            behind all others
ReleasePlace = Literal["place", "front", "back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    name: str

    # -- what survives and who sees it
    durable: bool = True
    #: False: only this process sees the queue (memory).
    shared: bool = True
    #: Real offsets: the same rows can be read again (a log, an archive).
    replayable: bool = False

    # -- publishing
    headers: bool = True
    key: bool = False
    delay: bool = True
    #: Longest native delay, and the only home of that number; None when there is no limit but the calendar's.
    max_delay_s: float | None = None
    max_body_bytes: int | None = None
    #: Any bytes can be a body; False where the broker carries text only.
    binary: bool = True
    #: Seconds within which the broker swallows a second message with the same id; None when it never does.
    dedup_window_s: float | None = None
    #: Order is kept per queue for messages nobody handed back.
    ordered: bool = True

    # -- consuming
    attempts: AttemptsRule = "body"
    #: What the broker's own count says on the first delivery; None when it has no count.
    count_base: int | None = None
    #: Where there is a count: it grows by one for every consumer that died with the message in hand, so it
    #: bounds a message that kills its workers. False where such a death may go uncounted.
    crash_counts: bool = True
    #: `Delivery.redelivered` is filled: a broker without a count, but with a mark.
    marks_redelivery: bool = False
    #: Name of the property that carries the schema version; None where there is no gate.
    gate_property: str | None = None
    #: Name of the property that carries the attempts; only read under a `property` rule.
    attempts_property: str = "bq-attempts"
    #: Seconds a reservation lasts unless extended; None when it ends with the connection only.
    lease_s: float | None = None
    #: Longest lease `extend` may give; None where it can only give `lease_s` again, or need not be asked.
    max_lease_s: float | None = None
    #: A reservation ends by time alone: it outlives connections, and restarts of the server.
    lasting_lease: bool = False
    #: `Delivery.position` is the server's own name for the message: the same whether it is browsed, reserved
    #: or redelivered, and no other message of the queue ever has it. False where there is none, or where the
    #: producer chose it.
    stable_position: bool = False
    #: ack, release and extend work from another process that holds the receipt.
    portable_receipts: bool = False
    #: `move` publishes the copy and settles the original in one atomic step.
    atomic_move: bool = False
    #: `release` keeps the broker's own count, so a retry needs no rewritten copy.
    release_counts: bool = False
    #: `release(count=False)` leaves no trace: the next delivery has the native count that this one had.
    #: False where the broker counts every delivery and cannot be told otherwise.
    release_uncounted: bool = False
    #: A message whose lease lapsed comes back with `attempts` one higher in its body.
    lapse_counts: bool = False
    #: `release` can hold the message back for a while natively.
    release_delay: bool = True
    #: Where a message goes that was handed back; decides how a redrive keeps the order of the others.
    release_to: ReleasePlace = "place"

    # -- looking
    browse: bool = True
    depth: bool = True
    #: `depth` is an estimate of some seconds ago: good to show, not to decide by.
    depth_lags: bool = False

    # -- settling what nobody may handle
    poison_without_dlq: WithoutDeadLetters = "retry"
    gated_without_dlq: WithoutDeadLetters = "drop"
    #: Text between a queue's name and its dead-letter queue's; some brokers forbid dots.
    dlq_suffix: str = ".dlq"
    #: Ending of a queue's name that says what kind of queue it is; its dead-letter queue's name ends so too.
    kind_suffix: str = ""
    #: Names the broker's own dead-letter sub-queue, a target `move` understands; "" when it has none
    #: or reaches it by leaving the message alone.
    native_dlq_suffix: str = ""
