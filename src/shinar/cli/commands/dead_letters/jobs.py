"""`shinar redrive list|status|cancel|undo-plan`: what the ledger knows of earlier redrives."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shinar.cli.support.output import emit
from shinar.cli.support.redrive_text import print_receipt
from shinar.errors import ConfigError
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.redrive import Job, Ledger


def run(args: argparse.Namespace, ledger: Ledger) -> int:
    verbs = {"list": show_list, "status": show_status, "cancel": cancel, "undo-plan": undo_plan}
    return verbs[args.what](args, ledger)


def show_list(args: argparse.Namespace, ledger: Ledger) -> int:
    jobs = ledger.jobs(args.limit or 50)
    if not jobs and not args.quiet:
        print("the ledger has no redrives yet", file=sys.stderr)
    for job in jobs:
        receipt = ledger.receipt(job.id)
        if args.json:
            emit(_job_row(job, ledger) | {"receipt": receipt.as_dict()})
        else:
            sent = f"{receipt.published:>8,} of {receipt.selected:>8,} sent"
            print(f"{job.id}  {_state(job, ledger):<11} {sent}  {job.who}  {printable(job.source)}")
    return 0


def show_status(args: argparse.Namespace, ledger: Ledger) -> int:
    job = ledger.job(args.id)
    receipt = ledger.receipt(job.id)
    if args.json:
        emit(_job_row(job, ledger) | {"receipt": receipt.as_dict()})
    else:
        at = datetime.fromtimestamp(job.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        note = f" ({printable(job.note)})" if job.note not in ("", job.state) else ""
        print(f"redrive {job.id}: {_state(job, ledger)}{note}")
        print(f"  {job.who}, {at}\n  from {printable(job.source)} queue {printable(job.queue)}")
        print(f"  to   {printable(_target(job))}\n  {printable(_filter(job))}")
        print_receipt(receipt, title=False)
        if _state(job, ledger) == "interrupted" and not args.quiet:
            print(f"its process has ended; continue with: shinar redrive resume {job.id}", file=sys.stderr)
    return 0 if receipt.adds_up else 1


def cancel(args: argparse.Namespace, ledger: Ledger) -> int:
    from shinar.redrive import JobState

    job = ledger.job(args.id)
    if job.state == JobState.DONE:
        raise ConfigError(
            f"redrive {job.id} is done and cannot be cancelled; undo-plan lists what was sent", setting="id"
        )
    if ledger.cancel(job.id) and not args.quiet:
        print("the process that runs it stops after the current batch", file=sys.stderr)
    return show_status(args, ledger) and 0


def undo_plan(args: argparse.Namespace, ledger: Ledger) -> int:
    """Which messages went where: what somebody needs who wants them out of the target again."""
    from shinar.redrive import LineState

    job = ledger.job(args.id)
    for line in ledger.lines_in(job.id, LineState.PUBLISHED, LineState.ACKED):
        row = {"id": line.new_id or line.id, "was": line.id, "queue": line.target, "state": line.state}
        print(json.dumps(row) if args.json else printable(f"{row['queue']}  {row['id']}"))
    if not args.quiet:
        print(
            "A message that was sent cannot be recalled: it may have been handled already. Let consumers "
            "skip these ids, or remove those that still wait in the queues named here.",
            file=sys.stderr,
        )
    return 0


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
    return ", ".join(f"{name} {value}" for name, value in asked.items()) or "all dead letters"


def _target(job: Job) -> str:
    return "the queue each came from" if job.target == job.source else job.target
