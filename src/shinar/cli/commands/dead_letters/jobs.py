"""`shinar redrive list|status|cancel|undo-plan`: what the ledger knows of earlier redrives."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.output import emit
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.redrive import Job, Ledger, Receipt

#: Kinds of skipped messages, in words.
WHY: Final = {
    "poison": "poison (--include-poison)",
    "version": "a version we do not speak (--include-version)",
    "loop": "died again after earlier redrives (--loop-limit)",
    "succeeded": "already processed",
    "schema": "the schema would refuse it (--include-invalid, or fix it with --set)",
    "dedup window": "the target would swallow it as a duplicate; wait, or give it a new id with --set",
    "no target": "no original queue known; name one with --to",
    "patch": "the change does not fit it",
    "too large": "the target takes no message of that size",
    "not text": "the target carries text only",
    "outside": "names a queue of another family than this dead-letter queue (--any-target, or --to)",
    "claimed": "claimed by another redrive; resume or cancel that one",
    "already sent": "already sent back by another redrive",
    "gone": "not handed out: no longer in the queue, or another consumer holds it",
}
#: Kinds whose first reason is worth reading.
_TELLING: Final = frozenset({"patch", "schema", "too large", "dedup window", "outside", "claimed"})


def reason(kind: str, examples: Mapping[str, str]) -> str:
    """A kind of skipped messages in words, with an example where that helps."""
    detail = examples.get(kind, "").partition(": ")[2] if kind in _TELLING else ""
    return WHY.get(kind, kind) + (f" (e.g. {detail[:120]})" if detail else "")


def show_list(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    jobs = ledger.jobs(args.limit or 50)
    if not jobs and not args.quiet:
        print("no redrive yet", file=sys.stderr)
    for job in jobs:
        receipt = ledger.receipt(job.id)
        if args.json:
            emit(_job_row(job, ledger) | {"receipt": receipt.as_dict()})
        else:
            sent = f"{receipt.published:>8,} of {receipt.selected:>8,} sent"
            print(f"{job.id}  {_state(job, ledger):<11} {sent}  {job.who}  {job.source}")
    return 0


def show_status(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    job = ledger.job(args.id)
    receipt = ledger.receipt(job.id)
    if args.json:
        emit(_job_row(job, ledger) | {"receipt": receipt.as_dict()})
    else:
        at = datetime.fromtimestamp(job.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        note = f" ({job.note})" if job.note not in ("", job.state) else ""
        print(f"redrive {job.id}: {_state(job, ledger)}{note}")
        print(f"  {job.who}, {at}\n  from {job.source} queue {job.queue}\n  to   {_target(job)}")
        print(f"  {_filter(job)}")
        print_receipt(receipt, title=False)
        if _state(job, ledger) == "interrupted" and not args.quiet:
            print(f"its runner is gone; go on with: shinar redrive resume {job.id}", file=sys.stderr)
    return 0 if receipt.adds_up else 1


def cancel(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    from shinar.redrive import JobState

    job = ledger.job(args.id)
    if job.state == JobState.DONE:
        raise ConfigError(f"redrive {job.id} is done; see undo-plan", setting="id")
    if ledger.cancel(job.id) and not args.quiet:
        print("its runner stops after the batch in hand", file=sys.stderr)
    return show_status(args, _settings, ledger) and 0


def undo_plan(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    """Which messages went where: what somebody needs who wants them out of the target again."""
    from shinar.redrive import LineState

    job = ledger.job(args.id)
    for line in ledger.lines_in(job.id, LineState.PUBLISHED, LineState.ACKED):
        row = {"id": line.new_id or line.id, "was": line.id, "queue": line.target, "state": line.state}
        print(json.dumps(row) if args.json else f"{row['queue']}  {row['id']}")
    if not args.quiet:
        print(
            "A sent message cannot be called back: it may be handled already. Consumers can skip these ids, "
            "or remove those still waiting from the queues named here.",
            file=sys.stderr,
        )
    return 0


def print_receipt(receipt: Receipt, *, title: bool = True) -> None:
    if title:
        print(f"redrive {receipt.job}: {receipt.state}")
    print(f"  {receipt.selected:>9,} selected")
    print(f"  {receipt.published:>9,} published ({receipt.bytes:,} bytes)")
    if receipt.maybe_twice:
        print(f"  {receipt.maybe_twice:>9,} of them maybe twice: a crash hid whether a first copy arrived")
    if receipt.died_again:
        print(f"  {receipt.died_again:>9,} of them died again since")
    print(f"  {receipt.skipped:>9,} skipped")
    for why, count in sorted(receipt.why_skipped.items()):
        print(f"  {'':>9}   {count:,} {reason(why, receipt.examples)}")
    print(f"  {receipt.failed:>9,} failed")
    for why, count in sorted(receipt.why_failed.items()):
        print(f"  {'':>9}   {count:,} {why}")
    if receipt.left:
        print(f"  {receipt.left:>9,} not done yet")


def _job_row(job: Job, ledger: Ledger) -> dict[str, Any]:
    import msgspec

    row = msgspec.structs.asdict(job)
    return row | {"state": _state(job, ledger), "spec": json.loads(job.spec)}


def _state(job: Job, ledger: Ledger) -> str:
    """The ledger cannot know that a runner was killed; who looks can."""
    from shinar.redrive import JobState

    if job.state == JobState.RUNNING and not ledger.alive(job):
        return "interrupted"
    return job.state


def _filter(job: Job) -> str:
    """What was asked for; what is as usual goes without saying."""
    import msgspec

    from shinar.redrive import Spec

    usual = json.loads(msgspec.json.encode(Spec()))
    asked = {name: value for name, value in json.loads(job.spec).items() if value != usual.get(name)}
    if "ids" in asked:
        asked["ids"] = f"({len(asked['ids'])} of them)"
    return ", ".join(f"{name} {value}" for name, value in asked.items()) or "all of them"


def _target(job: Job) -> str:
    return "the queue each came from" if job.target == job.source else job.target
