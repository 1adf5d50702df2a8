"""`shinar redrive list|status|cancel|undo-plan`: what the ledger knows of earlier redrives."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.common import emit
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.cli.settings import Settings
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
}


def show_list(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    for job in ledger.jobs(args.limit or 50):
        receipt = ledger.receipt(job.id)
        if args.json:
            emit(_job_row(job) | {"receipt": receipt.as_dict()})
        else:
            print(
                f"{job.id}  {job.state:<9} {receipt.published:>8,} of {receipt.selected:>8,} sent  "
                f"{job.who}  {job.source}"
            )
    return 0


def show_status(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    job = ledger.job(args.id)
    receipt = ledger.receipt(job.id)
    if args.json:
        emit(_job_row(job) | {"receipt": receipt.as_dict()})
    else:
        at = datetime.fromtimestamp(job.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        print(f"redrive {job.id}: {job.state} ({job.note or 'no remarks'})")
        print(f"  {job.who}, {at}\n  from {job.source} queue {job.queue}\n  to   {_target(job)}")
        print(f"  {_filter(job)}")
        print_receipt(receipt)
    return 0 if receipt.adds_up else 1


def cancel(args: argparse.Namespace, _settings: Settings, ledger: Ledger) -> int:
    from shinar.redrive import JobState, LineState

    job = ledger.job(args.id)
    if job.state == JobState.DONE:
        raise ConfigError(f"redrive {job.id} is done; see undo-plan", setting="id")
    running = job.state == JobState.RUNNING
    ledger.change(job.id, state=JobState.CANCELLED, note="cancelled")
    if not running:
        ledger.close_open(job.id, LineState.SKIPPED, "cancelled", LineState.PLANNED)
    elif not args.quiet:
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


def print_receipt(receipt: Receipt) -> None:
    print(f"redrive {receipt.job}: {receipt.state}")
    print(f"  {receipt.selected:>9,} selected")
    print(f"  {receipt.published:>9,} published ({receipt.bytes:,} bytes)")
    if receipt.maybe_twice:
        print(f"  {receipt.maybe_twice:>9,} of them maybe twice: a crash hid whether a first copy arrived")
    if receipt.died_again:
        print(f"  {receipt.died_again:>9,} of them died again since")
    print(f"  {receipt.skipped:>9,} skipped")
    for why, count in sorted(receipt.why_skipped.items()):
        print(f"  {'':>9}   {count:,} {WHY.get(why, why)}")
    print(f"  {receipt.failed:>9,} failed")
    for why, count in sorted(receipt.why_failed.items()):
        print(f"  {'':>9}   {count:,} {why}")
    if receipt.left:
        print(f"  {receipt.left:>9,} not done yet")


def _job_row(job: Job) -> dict[str, Any]:
    import msgspec

    row = msgspec.structs.asdict(job)
    return row | {"spec": json.loads(job.spec)}


def _filter(job: Job) -> str:
    spec = {
        name: value for name, value in json.loads(job.spec).items() if value not in ("", None, [], 0, False)
    }
    return ", ".join(f"{name} {value}" for name, value in spec.items()) or "all of them"


def _target(job: Job) -> str:
    return "the queue each came from" if job.target == job.source else job.target
