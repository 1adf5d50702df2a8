"""`shinar redrive`: send dead letters back, once, with a receipt; and look after earlier redrives."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.commands.dead_letters.jobs import (
    cancel,
    print_receipt,
    reason,
    show_list,
    show_status,
    undo_plan,
)
from shinar.cli.support.dead_letters import ids_of, since_ms, without_secrets
from shinar.cli.support.output import (
    MASK,
    Progress,
    Stopper,
    add_output,
    add_settings,
    address,
    emit,
    settings_of,
    with_token,
)
from shinar.errors import Cancelled, ConfigError

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.redrive import Job, Ledger, Plan, Receipt, Redrive, Spec

EXAMPLES: Final = """examples:
  shinar redrive redis://localhost/orders.dlq --dry-run
  shinar redrive sqs://eu-west-1/orders-dlq --where "exception like '%GatewayTimeout'" --rate 200/s --yes
  shinar redrive amqp://localhost/orders.dlq --to sqs://eu-west-1/orders --fingerprint 3f9a
  shinar redrive phpmq://localhost/orders.dlq --set 'data.amount = data.amount * 100' --registry registry.json
  shinar redrive list
  shinar redrive status|resume|cancel|undo-plan 20261115-021403-9f3c
Columns of --where: urn, exception, error, reason, lang, queue, original_queue, created_at, failed_at,
attempts, id, trace_id, fingerprint, data.field. Exit code 0 only if every selected message is accounted for.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "redrive",
        help="send dead letters back, once",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="URL of a dead-letter queue, or list, status, resume, cancel, undo-plan")
    parser.add_argument("id", nargs="?", help="a redrive, for all of these but list")
    add_choice(parser)
    group = parser.add_argument_group("sending")
    group.add_argument("--to", default="", metavar="QUEUE|URL", help="another queue, or another broker")
    group.add_argument("--dry-run", action="store_true", help="only tell what would happen; read only")
    group.add_argument("--rehearse", metavar="MODULE:HANDLERS", help="run these handlers over a sample first")
    group.add_argument(
        "--sample", type=_positive, default=100, help="messages a rehearsal runs (default 100)"
    )
    group.add_argument("--rate", default="", help="at most so many a second: 200/s")
    group.add_argument(
        "--max-failure-ratio", type=_ratio, default=0.0, help="stop when more than this fails or dies again"
    )
    group.add_argument("--bypass", action="store_true", help="mark copies with bq-replay-bypass")
    group.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="'data.x = SQL'", help="change one member"
    )
    group.add_argument("--patch", default="", metavar="MODULE:FUNCTION", help="change data with a function")
    group.add_argument(
        "--skip-succeeded", metavar="URL|LAKE", help="leave out what an idempotency store or a lake knows"
    )
    group.add_argument("--include-poison", action="store_true", help="send poison back too, unwrapped")
    group.add_argument("--include-version", action="store_true", help="send unsupported versions back too")
    group.add_argument(
        "--any-target",
        action="store_true",
        help="also send to queues that the name of this one does not imply",
    )
    group.add_argument("--include-invalid", action="store_true", help="send what its schema refuses too")
    group.add_argument(
        "--loop-limit", type=int, default=2, help="redrives of one message (default 2; 0: any)"
    )
    group.add_argument("--yes", action="store_true", help="do not ask for the count to be typed")
    group.add_argument("--url", default=None, help="for resume: the URL, if it holds a secret")
    add_settings(parser, "queue", "ledger", "registry")
    add_output(parser)
    parser.set_defaults(run=run)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The flags that choose dead letters; `dlq` has the same."""
    group = parser.add_argument_group("choosing")
    group.add_argument("--where", default="", help="an SQL expression over the envelope")
    group.add_argument("--fingerprint", default="", help="one kind of failure, by the beginning of its name")
    group.add_argument("--since", default="", help="died since: 24h, 7d, or a date and time (UTC)")
    group.add_argument("--limit", type=_positive, help="so many at most")
    group.add_argument("--ids", metavar="FILE", help="only the message ids in this file, one a line")
    group.add_argument(
        "--reserve", action="store_true", help="read by reserving where a broker cannot be browsed"
    )


def run(args: argparse.Namespace) -> int:
    from shinar.redrive import Ledger

    settings = settings_of(args)
    ledger = Ledger(settings["ledger"])
    try:
        if args.what in _VERBS:
            if args.what != "list" and not args.id:
                raise ConfigError(f"which one? shinar redrive {args.what} ID", setting="id")
            return _VERBS[args.what](args, settings, ledger)
        args.url = args.what
        return _send(args, settings_of(args), ledger)
    finally:
        ledger.close()


# -- a new redrive


def _send(args: argparse.Namespace, settings: Settings, ledger: Ledger) -> int:
    from shinar.brokers import traits

    url, queue = address(args, settings)
    redrive = _redrive(args, settings, ledger, url, queue, spec_of(args, settings))
    if args.rehearse:
        return _rehearse(args, redrive)
    if args.dry_run:
        return _dry_run(args, redrive)
    _say_side_effect(args, url)
    if not traits(url).browse and not args.reserve:
        if not args.yes:
            raise ConfigError(
                "this broker cannot be looked at, so nobody can say how many there are; "
                "add --reserve to count them first, or --yes to send what is found",
                setting="--yes",
            )
        return _run(args, redrive, None, None)
    if not args.yes and not sys.stdin.isatty():
        raise ConfigError("nobody is here to confirm; add --yes", setting="--yes")
    job, plan = redrive.prepare(reserve=args.reserve)
    if not args.quiet:
        _show_plan(plan.as_dict(), f"redrive {job.id}", len(redrive.spec.ids))
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
        if note := ledger.job(receipt.job).note:
            print(note, file=sys.stderr)
        print(f"go on with: shinar redrive resume {receipt.job}", file=sys.stderr)
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
    _say_side_effect(args, redrive.url)
    plan = redrive.dry_run(reserve=args.reserve)
    _say_missing(args, redrive, plan)
    if args.json:
        emit(plan.as_dict())
    else:
        _show_plan(plan.as_dict(), "dry run", len(redrive.spec.ids), sys.stdout)
        print("nothing was changed")
    return 0


def _rehearse(args: argparse.Namespace, redrive: Redrive) -> int:
    from shinar.cli.commands.worker import load_handlers
    from shinar.redrive.rehearse import rehearse

    result = rehearse(redrive, load_handlers(args.rehearse), sample=args.sample, reserve=args.reserve)
    if args.json:
        emit(result.as_dict())
    else:
        print(f"rehearsed {result.ran:,}: {result.passed:,} pass now, {result.failed:,} still fail")
        for error, count in sorted(result.errors.items(), key=lambda pair: -pair[1])[:20]:
            print(f"  {count:>7,}  {error}")
        print("nothing was changed on the broker")
    return 1 if result.failed else 0


def _say_missing(args: argparse.Namespace, redrive: Redrive, plan: Plan) -> None:
    from shinar.cli.commands.broker.broker import say_missing

    if not plan.looked and not args.quiet:
        say_missing(redrive.url, redrive.queue)


def _say_side_effect(args: argparse.Namespace, url: Any) -> None:
    from shinar.brokers import traits
    from shinar.redrive.letters.read import side_effect_of

    if args.reserve and not args.quiet and (text := side_effect_of(traits(url))):
        print(f"note: {text}", file=sys.stderr)


def _show_plan(plan: dict[str, Any], title: str, ids: int, out: Any = None) -> None:
    out = out or sys.stderr
    looked = f"{plan['looked']:,}" if plan["complete"] else f"the first {plan['looked']:,}"
    print(f"{title}: {plan['selected']:,} of {looked} dead letters are meant", file=out)
    if ids and plan["complete"] and plan["selected"] < ids:
        print(f"  {ids - plan['selected']:>9,} of {ids:,} ids were not found", file=out)
    for queue, count in sorted(plan["targets"].items()):
        print(f"  {count:>9,} would go to {queue}", file=out)
    if plan["sendable"]:
        print(f"  {plan['bytes']:>9,} bytes", file=out)
    for why, count in sorted(plan["why_skipped"].items()):
        print(f"  {count:>9,} skipped: {reason(why, plan['examples'])}", file=out)
    if plan["reserved"]:
        print(f"  {plan['reserved']:>9,} more are reserved and were not looked at", file=out)
    if plan["already"]:
        print(f"  {plan['already']:>9,} of this log were sent back before and are left out", file=out)
    if plan["died_again"]:
        print(f"  {plan['died_again']:>9,} of these died again after an earlier redrive", file=out)
    for one in plan["sample"]:
        print(f"  e.g. {one['id']} {one['urn']} -> {one['target']}: {one['error'] or ''}"[:160], file=out)


def _resume(args: argparse.Namespace, settings: Settings, ledger: Ledger) -> int:
    import msgspec

    from shinar.brokers import parse
    from shinar.redrive import Spec
    from shinar.redrive.model import endpoint

    job = ledger.job(args.id)
    # SHINAR_TOKEN fills in for the embedded broker's.
    named_by = "url" if args.url else "ledger"
    url = with_token(parse(args.url or job.source), settings, named_by=named_by)
    if _masked(url) and settings["url"]:
        url = with_token(parse(settings["url"]), settings)
    if _masked(url):
        raise ConfigError(f"give the URL again, it holds a secret: --url {job.source}", setting="url")
    if endpoint(url) != job.source_key:
        raise ConfigError(
            f"redrive {job.id} is about {job.source}; {url.masked} is another server", setting="url"
        )
    spec = msgspec.json.decode(job.spec, type=Spec)
    if endpoint(parse(job.target)) != endpoint(url):
        args.to = args.to or job.target
        if MASK in args.to:
            raise ConfigError(f"give the target again, it holds a secret: --to {job.target}", setting="--to")
    args.patch = args.patch or spec.patch
    if MASK not in spec.skip_succeeded:
        args.skip_succeeded = args.skip_succeeded or spec.skip_succeeded
    redrive = _redrive(args, settings, ledger, url, job.queue, spec)
    progress = Progress("redrive", ledger.receipt(job.id).left, quiet=args.quiet)
    waits = (lambda _: None) if args.quiet else _say_wait
    with Stopper(redrive.stop, quiet=args.quiet) as stopper:
        receipt = redrive.resume(job.id, progress=progress.add, waits=waits)
    progress.done()
    return _hand_over(args, redrive.ledger, receipt, stopper)


def _say_wait(most_s: float) -> None:
    print(f"waiting up to {most_s:.0f} s for the leases of the run that ended", file=sys.stderr, flush=True)


# -- parts


def spec_of(args: argparse.Namespace, settings: Settings) -> Spec:
    from shinar.redrive import Spec

    return Spec(
        where=args.where,
        fingerprint=args.fingerprint,
        since_ms=since_ms(args.since),
        limit=args.limit,
        ids=ids_of(args.ids),
        bypass=args.bypass,
        rate_per_s=rate_of(args.rate),
        max_failure_ratio=args.max_failure_ratio,
        include_poison=args.include_poison,
        include_version=args.include_version,
        include_invalid=args.include_invalid,
        any_target=args.any_target,
        skip_succeeded=without_secrets(args.skip_succeeded),
        loop_limit=args.loop_limit,
        sets=tuple(args.sets),
        patch=args.patch,
        registry=settings["registry"],
    )


def _redrive(
    args: argparse.Namespace, settings: Settings, ledger: Ledger, url: Any, queue: str, spec: Spec
) -> Redrive:
    from shinar.cli.commands.worker import load_handlers
    from shinar.redrive import Redrive

    validate = None
    registry = settings["registry"] or spec.registry
    if registry:
        from shinar.schemas import Registry

        validate = Registry.load(registry).validate
    return Redrive(
        url,
        spec,
        queue=queue,
        to=args.to,
        ledger=ledger,
        succeeded=_succeeded(args.skip_succeeded),
        validate=validate,
        patch=load_handlers(args.patch) if args.patch else None,
    )


def _succeeded(text: str | None) -> Any:
    if not text:
        return None
    if "://" not in text:
        from shinar.redrive import LakeSeen

        return LakeSeen(text)
    from shinar.idempotency import open_store

    return open_store(text)


def _masked(url: Any) -> bool:
    return MASK in (url.password, *url.options.values())


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write 0.2 for a fifth")
    return ratio


def rate_of(text: str) -> float:
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?", text.strip())
    if match is None or not float(match[1]):
        raise ConfigError(f"{text!r} is no rate; write 200/s", setting="--rate")
    return float(match[1]) / {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


_VERBS: Final = {
    "list": show_list,
    "status": show_status,
    "resume": _resume,
    "cancel": cancel,
    "undo-plan": undo_plan,
}
