"""The adapter's calls that need no server: question in, answer out."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

import shinar
from shinar.brokers import Delivery, Outgoing
from shinar.brokers.kafka import retry_tiers as tiers
from shinar.brokers.projection import project as project_onto
from shinar.brokers.redis import keys as redis_rules
from shinar.brokers.sqs import limits as sqs_rules
from shinar.clock import SYSTEM
from shinar.conformance import bindings
from shinar.envelope import (
    DeadReason,
    Message,
    attempts_of,
    build,
    dead_letter,
    encode,
    extract_trace,
    judge,
    parse_strict,
)
from shinar.envelope import classify as classify_body
from shinar.envelope import copies as copy
from shinar.errors import ContractError
from shinar.idempotency import MemoryStore
from shinar.schemas import conforms
from shinar.settlement import Action, Backoff, Event, Policy, decide, if_write_fails, reconcile, speaks
from shinar.worker import Context, idempotent

Args = dict[str, Any]
Answer = dict[str, Any]


def body_of(args: Args) -> bytes:
    return base64.b64decode(args["body_b64"])


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def hello(args: Args) -> Answer:
    return {"protocol": 1, "name": "shinar", "version": shinar.__version__}


def produce(args: Args) -> Answer:
    options = {name: args[name] for name in ("queue", "trace_id") if name in args}
    entries: Any = args.get("meta") or ()
    if "meta_entries" in args:
        entries = [(name, value) for name, value in args["meta_entries"]]
    message = build(args["urn"], args["data"], meta=entries, **options)
    if args.get("extras_meta"):
        extra = {**(message.meta.extra or {}), **args["extras_meta"]}
        message = msgspec.structs.replace(message, meta=msgspec.structs.replace(message.meta, extra=extra))
    if args.get("extras_top"):
        message = msgspec.structs.replace(message, extra=dict(args["extras_top"]))
    return {"body_b64": b64(encode(message))}


def decode(args: Args) -> Answer:
    verdict = judge(body_of(args))
    message = _decoded(args)
    return {
        "urn": message.urn,
        "accepts": verdict.accepts,
        "warnings": [str(warning) for warning in verdict.warnings],
        "message": parse_strict(copy.reencode(verdict.body)),
    }


def _decoded(args: Args) -> Message:
    verdict = judge(body_of(args))
    if verdict.message is None:
        raise ContractError(f"not decodable: {verdict.reason}", pointer=verdict.pointer or None)
    return verdict.message


def reencode(args: Args) -> Answer:
    _decoded(args)
    return {"body_b64": b64(copy.reencode(body_of(args)))}


def retry_copy(args: Args) -> Answer:
    _decoded(args)
    return {"body_b64": b64(copy.retry_copy(body_of(args)))}


def dead_letter_copy(args: Args) -> Answer:
    _decoded(args)
    body = body_of(args)
    block = dead_letter(
        DeadReason(args["reason"]),
        queue=args["original_queue"],
        attempts=attempts_of(body) + 1,
        failed_ms=SYSTEM.epoch_ms(),
    )
    return {"body_b64": b64(copy.dead_letter_copy(body, block))}


def classify(args: Args) -> Answer:
    return {"verdict": classify_body(body_of(args))}


def poison_record(args: Args) -> Answer:
    block = dead_letter(
        DeadReason.POISON, queue=args["original_queue"], attempts=0, failed_ms=SYSTEM.epoch_ms()
    )
    return {"body_b64": b64(copy.poison_record(body_of(args), block))}


def validate(args: Args) -> Answer:
    return {"valid": conforms(args["schema"], args["data"])}


def dedup_key(args: Args) -> Answer:
    return {"key": _decoded(args).id}


def run_idempotency(args: Args) -> Answer:
    store = MemoryStore()
    runs: list[str] = []

    def handler(message: Message, context: Context) -> None:
        runs.append("run")
        if message.data["outcome"] == "throw":
            raise RuntimeError("the case wants a failure")

    guarded = idempotent(store)(handler)
    effects = []
    for row in args["deliveries"]:
        plain = build("urn:case", {"outcome": row["outcome"]})
        message = msgspec.structs.replace(plain, meta=msgspec.structs.replace(plain.meta, id=row["meta_id"]))
        if row["forget_before"]:
            store.forget([row["meta_id"]])
        before = len(runs)
        with contextlib.suppress(RuntimeError):
            guarded(message, Context(message, Delivery(b"", "case")))
        effects.append("run" if len(runs) > before else "skip")
    return {"effects": effects}


def retry_delay(args: Args) -> Answer:
    backoff = Backoff(args["base"], args["multiplier"], args["max"], args["jitter"])
    return {"seconds": backoff.delay_s(args["n"])}


def trace(args: Args) -> Answer:
    found = extract_trace(args["traceparent"], args["trace_id"])
    return {name: value for name, value in found._asdict().items() if value is not None}


def project(args: Args) -> Answer:
    binding = args["binding"]
    made = project_onto(bindings.projection(binding), Outgoing(body_of(args)))
    headers, properties = dict(made.headers), dict(made.properties)
    match binding:
        case "sqs":
            from shinar.brokers.sqs.messages import attributes_of

            return {"message_attributes": attributes_of(headers, copy=False)}
        case "asb":
            return {"message": properties, "application_properties": headers}
        case "pulsar":
            return {"properties": headers}
        case "kafka":
            return {"headers": headers}
        case "artemis":
            return {
                "annotations": dict(made.annotations),
                "correlation_id": properties.get("correlation_id"),
                "properties": headers,
            }
        case _:
            return {"properties": properties, "headers": headers}


def _attempts(binding: str, delivery: Args) -> int:
    message = judge(body_of(delivery)).message
    count = bindings.native_count(binding, delivery["count"])
    return reconcile(
        bindings.traits(binding), message.attempts if message else 0, count, delivery["properties"]
    )


def run_reconcile(args: Args) -> Answer:
    return {"attempts": _attempts(args["binding"], args["delivery"])}


def version_gate(args: Args) -> Answer:
    bindings.traits(args["binding"])
    value = args["value"]
    if args["value_type"] in ("float32", "float64"):
        value = float(value)
    return {"verdict": "decode" if speaks(value) else "gated"}


_OUTCOMES: Final = {
    Action.DEAD_LETTER: "dlq",
    Action.DEAD_LETTER_RAW: "dlq_raw",
    Action.RETRY: "retry",
    Action.DROP: "drop",
    Action.NATIVE: "native",
    Action.UNSETTLED: "unsettled",
    Action.RELEASE: "release",
}


def settle(args: Args) -> Answer:
    binding, config = args["binding"], args["config"]
    options = {name: config[name] for name in ("on_unknown_urn", "max_attempts") if name in config}
    policy = Policy(on_exhausted="dead_letter" if config["dead_letter"] else "drop", **options)
    event = Event(args["kind"])
    attempts = 0 if event is Event.VERSION_GATED else _attempts(binding, args["delivery"])
    decision = decide(event, attempts, policy, bindings.traits(binding))
    if args["dlq_write"] == "fails":
        decision = if_write_fails(decision)
    answer: Answer = {"outcome": _OUTCOMES[decision.action]}
    if decision.action in (Action.RETRY, Action.DEAD_LETTER):
        answer["attempts"] = decision.attempts
    if decision.reason is not None:
        answer["reason"] = str(decision.reason)
    if decision.action is Action.DEAD_LETTER_RAW:
        answer["record_b64"] = args["delivery"]["body_b64"]
    return answer


def sqs_publish_delay(args: Args) -> Answer:
    return {"delay_seconds": sqs_rules.publish_delay_s(args["queue_type"] == "fifo", args["seconds"])}


def sqs_release_visibility(args: Args) -> Answer:
    return {"visibility_timeout": sqs_rules.release_visibility_s(args["seconds"])}


def kafka_delay(args: Args) -> Answer:
    checked = tiers.check_tiers(args["tiers_ms"])
    topic, headers = tiers.delay_record(args["work_topic"], checked, args["delay_ms"])
    return {"topic": topic, "headers": headers}


def kafka_retry(args: Args) -> Answer:
    checked = tiers.check_tiers(args["tiers_ms"])
    topic, headers, attempts = tiers.retry_record(args["work_topic"], checked, args["attempts"])
    body = copy.retry_copy(body_of(args), attempts)
    return {"topic": topic, "headers": headers, "body_b64": b64(body), "key_b64": args["key_b64"]}


def kafka_retry_topic(args: Args) -> Answer:
    return {"topic": tiers.retry_topic(args["work_topic"], args["n"])}


def kafka_default_tiers(args: Args) -> Answer:
    return {"tiers_ms": list(tiers.DEFAULT_TIERS_MS)}


def redis_keys(args: Args) -> Answer:
    found = redis_rules.keys(args["queue"], "laravel", args["key_prefix"])
    return {name: getattr(found, name) for name in ("ready", "delayed", "reserved", "notify")}


def redis_score(args: Args) -> Answer:
    return {"score": redis_rules.delayed_score(args["now"], args["delay"])}


CALLS: Final[dict[str, Callable[[Args], Answer]]] = {
    "hello": hello,
    "produce": produce,
    "decode": decode,
    "reencode": reencode,
    "retry_copy": retry_copy,
    "dead_letter_copy": dead_letter_copy,
    "classify": classify,
    "poison_record": poison_record,
    "validate": validate,
    "dedup_key": dedup_key,
    "idempotency": run_idempotency,
    "retry_delay": retry_delay,
    "extract_trace": trace,
    "project": project,
    "reconcile": run_reconcile,
    "version_gate": version_gate,
    "settle": settle,
    "sqs_publish_delay": sqs_publish_delay,
    "sqs_release_visibility": sqs_release_visibility,
    "kafka_delay": kafka_delay,
    "kafka_retry": kafka_retry,
    "kafka_retry_topic": kafka_retry_topic,
    "kafka_default_tiers": kafka_default_tiers,
    "redis_keys": redis_keys,
    "redis_score": redis_score,
}

__all__ = ["CALLS", "Answer", "Args", "b64", "body_of"]
