"""`shinar redrive`: send dead letters back, once, with a receipt; and look after earlier redrives."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.dead_letters import (
    WHERE_HELP,
    add_choice,
    note,
    plural,
    positive,
)
from shinar.cli.support.embedded import say_missing
from shinar.cli.support.output import (
    MASK,
    Progress,
    Stopper,
    add_output,
    add_settings,
    emit,
    settings_of,
)
from shinar.cli.support.redrive_job import redrive_of, source, source_of, spec_of
from shinar.cli.support.redrive_text import print_plan, print_receipt
from shinar.cli.support.user_code import load_object
from shinar.errors import Cancelled, ConfigError
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.redrive import Job, Ledger, Plan, Receipt, Redrive

EXAMPLES: Final = f"""examples:
  shinar redrive redis://localhost/orders.dlq --dry-run
  shinar redrive sqs://eu-west-1/orders-dlq --where "exception like '%GatewayTimeout'" --rate 200/s --yes
  shinar redrive amqp://localhost/orders.dlq --to sqs://eu-west-1/orders --fingerprint 3f9a
  shinar redrive phpmq://localhost/orders.dlq --set 'data.cents = round(data.price * 100)' --dry-run
  shinar redrive --lake lake --to redis://localhost --since 24h
  shinar redrive list
  shinar redrive status|resume|cancel|undo-plan 20261115-021403-9f3c

{WHERE_HELP}
Exit code 0 means that every selected message is accounted for.
"""
#: Those of the module `jobs`, which is not imported before one of them is asked for.
VERBS: Final = ("list", "status", "cancel", "undo-plan")
RESUME: Final = "resume"
#: As in shinar.redrive.letters.repair and shinar.redrive.lake, which --help must not import.
REPAIRS: Final = ("php-empty-data",)
TABLES: Final = ("dead_letters", "quarantine")


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "redrive",
        help="send dead letters back, once",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="URL|VERB",
        help="the dead-letter queue; or list, status, resume, cancel, undo-plan",
    )
    parser.add_argument("id", nargs="?", help="id of a redrive, for status, resume, cancel and undo-plan")
    add_choice(parser)
    _add_sending(parser.add_argument_group("sending"))
    _add_limits(parser.add_argument_group("what is sent"))
    add_settings(parser, "queue", "lake", "ledger", "registry")
    add_output(parser)
    parser.set_defaults(run=run)


def _add_sending(group: Any) -> None:
    group.add_argument(
        "--to",
        default="",
        metavar="QUEUE|URL",
        help="another queue, or another broker; with --lake, the broker",
    )
    group.add_argument("--dry-run", action="store_true", help="show what would happen and change nothing")
    group.add_argument(
        "--rehearse", metavar="MODULE:HANDLERS", help="run these handlers over a sample and send nothing"
    )
    group.add_argument(
        "--sample", type=positive, default=100, help="messages that --rehearse runs (default 100)"
    )
    group.add_argument("--rate", default="", help="messages per second, minute or hour: 200/s, 50/m")
    group.add_argument(
        "--max-failure-ratio",
        type=_ratio,
        default=0.0,
        help="pause when more than this fraction fails or dies again: 0.2",
    )
    group.add_argument(
        "--bypass",
        action="store_true",
        help="add the header bq-replay-bypass, which tells handlers to skip outside effects",
    )
    group.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="'data.x = SQL'",
        help="set a member of the payload; may be repeated",
    )
    group.add_argument(
        "--patch",
        default="",
        metavar="MODULE:FUNCTION",
        help="change the payload with a function: data -> data",
    )


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--skip-succeeded",
        metavar="URL|LAKE",
        help="leave out messages that an idempotency store or a lake has seen succeed",
    )
    group.add_argument(
        "--include-poison", action="store_true", help="send poison too, as the bytes it was made from"
    )
    group.add_argument(
        "--repair", choices=REPAIRS, default="", help='send PHP\'s dead letters with "data":[] as "data":{}'
    )
    group.add_argument(
        "--any-target",
        action="store_true",
        help="send also to a queue that a dead letter names and the name of its dead-letter queue does not",
    )
    group.add_argument("--include-version", action="store_true", help="send unsupported schema versions too")
    group.add_argument(
        "--include-invalid", action="store_true", help="send payloads too that the schema refuses"
    )
    group.add_argument(
        "--loop-limit", type=int, default=2, help="redrives of one message (default 2; 0 for no limit)"
    )
    group.add_argument("--yes", action="store_true", help="send without asking")
    group.add_argument("--url", default=None, help="resume: the URL again, if it has a password or token")
    group.add_argument("--table", choices=TABLES, default=TABLES[0], help="with --lake: the table to read")


def run(args: argparse.Namespace) -> int:
    from shinar.redrive import Ledger

    settings = settings_of(args)
    ledger = Ledger(settings["ledger"])
    try:
        if args.what in (*VERBS, RESUME):
            if args.what != "list" and not args.id:
                raise ConfigError(f"name the redrive: shinar redrive {args.what} ID", setting="id")
            if args.what == RESUME:
                return _resume(args, settings, ledger)
            jobs = importlib.import_module("shinar.cli.commands.dead_letters.jobs")
            code: int = jobs.run(args, ledger)
            return code
        args.url = args.what
        return _send(args, settings_of(args), ledger)
    finally:
        ledger.close()


# -- a new redrive


def _send(args: argparse.Namespace, settings: Settings, ledger: Ledger) -> int:
    redrive = redrive_of(args, settings, ledger, source(args, settings), spec_of(args, settings))
    if args.rehearse:
        return _rehearse(args, redrive)
    if args.dry_run:
        return _dry_run(args, redrive)
    _say_side_effect(args, redrive)
    if not redrive.traits.browse and not args.reserve:
        if not args.yes:
            raise ConfigError(
                "this broker cannot be browsed, so the dead letters cannot be counted first; add --reserve "
                "to count them, or --yes to send what is found",
                setting="--yes",
            )
        return _run(args, redrive, None, None)
    if not args.yes and not sys.stdin.isatty():
        raise ConfigError(
            "stdin is not a terminal, so the count cannot be confirmed; add --yes", setting="--yes"
        )
    job, plan = redrive.prepare(reserve=args.reserve)
    if not args.quiet:
        print_plan(plan.as_dict(), f"redrive {job.id}", len(redrive.spec.ids), sys.stderr)
    _say_missing(args, redrive, plan)
    if plan.sendable and not args.yes:
        try:
            _confirm(plan.sendable)
        except (Cancelled, KeyboardInterrupt):
            ledger.cancel(job.id, "not confirmed")
            raise
    return _run(args, redrive, job, plan.sendable)


def _run(args: argparse.Namespace, redrive: Redrive, job: Job | None, total: int | None) -> int:
    progress = Progress("redrive", total, quiet=args.quiet)
    with Stopper(redrive.stop, quiet=args.quiet) as stopper:
        receipt = redrive.run(job, progress=progress.add)
    progress.done()
    return _hand_over(args, redrive.ledger, receipt, stopper)


def _hand_over(args: argparse.Namespace, ledger: Ledger, receipt: Receipt, stopper: Stopper) -> int:
    if args.json:
        emit(receipt.as_dict())
    else:
        print_receipt(receipt)
    if not receipt.adds_up and not args.quiet:
        if why := ledger.job(receipt.job).note:
            print(printable(why), file=sys.stderr)
        print(f"continue with: shinar redrive resume {receipt.job}", file=sys.stderr)
    if receipt.adds_up:
        return 0
    return 130 if stopper.asked else 1


def _confirm(count: int) -> None:
    try:
        typed = input(f"Type {count} to send them back: ")
    except EOFError:
        typed = ""
    if typed.strip().replace(",", "") != str(count):
        raise Cancelled("nothing was sent")


def _dry_run(args: argparse.Namespace, redrive: Redrive) -> int:
    _say_side_effect(args, redrive)
    plan = redrive.dry_run(reserve=args.reserve)
    _say_missing(args, redrive, plan)
    if args.json:
        emit(plan.as_dict())
    else:
        print_plan(plan.as_dict(), "dry run", len(redrive.spec.ids), sys.stdout)
        print("nothing was changed")
    return 0


def _rehearse(args: argparse.Namespace, redrive: Redrive) -> int:
    from shinar.redrive.rehearse import rehearse

    result = rehearse(
        redrive, load_object(args.rehearse, "--rehearse"), sample=args.sample, reserve=args.reserve
    )
    if args.json:
        emit(result.as_dict())
    else:
        print(f"rehearsed {result.ran:,}: {result.passed:,} pass now, {result.failed:,} still fail")
        for error, count in sorted(result.errors.items(), key=lambda pair: -pair[1])[:20]:
            print(f"  {count:>7,}  {printable(error)}")
        print("nothing was changed on the broker")
    return 1 if result.failed else 0


def _say_missing(args: argparse.Namespace, redrive: Redrive, plan: Plan) -> None:
    if args.quiet:
        return
    if skipped := redrive.where_skipped:
        note(f"--where raised an error for {plural(skipped, 'dead letter')}; they were left out")
    if not plan.looked:
        say_missing(redrive.url, redrive.queue)


def _say_side_effect(args: argparse.Namespace, redrive: Redrive) -> None:
    from shinar.redrive.letters.read import side_effect_of

    if args.reserve and not args.quiet and (text := side_effect_of(redrive.traits)):
        note(text)


def _resume(args: argparse.Namespace, settings: Settings, ledger: Ledger) -> int:
    import msgspec

    from shinar.brokers import parse
    from shinar.redrive import Spec
    from shinar.redrive.model import endpoint

    job = ledger.job(args.id)
    url, lake = source_of(args, settings, job)
    spec = msgspec.json.decode(job.spec, type=Spec)
    if endpoint(parse(job.target)) != endpoint(url):
        args.to = args.to or job.target
        if MASK in args.to:
            why = "the ledger keeps no passwords or tokens; give the target again"
            raise ConfigError(f"{why}: --to {job.target}", setting="--to")
    args.patch = args.patch or spec.patch
    if MASK not in spec.skip_succeeded:
        args.skip_succeeded = args.skip_succeeded or spec.skip_succeeded
    redrive = redrive_of(args, settings, ledger, (url, job.queue, lake), spec)
    progress = Progress("redrive", ledger.receipt(job.id).left, quiet=args.quiet)
    waits = (lambda _: None) if args.quiet else _say_wait
    with Stopper(redrive.stop, quiet=args.quiet) as stopper:
        receipt = redrive.resume(job.id, progress=progress.add, waits=waits)
    progress.done()
    return _hand_over(args, redrive.ledger, receipt, stopper)


def _say_wait(most_s: float) -> None:
    print(f"waiting up to {most_s:.0f} s for the leases of the run that ended", file=sys.stderr, flush=True)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1; write 0.2 for a fifth")
    return ratio
