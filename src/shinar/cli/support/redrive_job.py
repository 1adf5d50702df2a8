"""A redrive put together from the command line, or from the ledger to continue it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from shinar.cli.support.dead_letters import ids_of, since_ms, without_secrets
from shinar.cli.support.output import MASK, address, with_token
from shinar.cli.support.user_code import load_object
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings
    from shinar.redrive import Job, Ledger, Redrive, Spec

#: URL, queue, and the open source where no URL scheme opens it.
Source = tuple[Any, str, Any]


def source(args: argparse.Namespace, settings: Settings) -> Source:
    if not args.lake:
        return (*address(args, settings), None)
    from shinar.redrive.lake import LakeSource, lake_url

    if args.what:
        raise ConfigError("name a queue or a lake, not both", setting="--lake")
    if "://" not in args.to:
        raise ConfigError("a lake has no queues: name the broker with --to URL", setting="--to")
    url = lake_url(args.lake, args.table)
    return url, url.queue, LakeSource(url)


def source_of(args: argparse.Namespace, settings: Settings, job: Job) -> tuple[Any, Any]:
    """(URL, open source or None) of a job of the ledger."""
    from shinar.brokers import parse
    from shinar.redrive.lake import SCHEME, LakeSource, lake_url
    from shinar.redrive.model import endpoint

    if job.source.startswith(f"{SCHEME}://"):
        url = lake_url(job.source.removeprefix(f"{SCHEME}://").partition("?")[0], job.queue)
        return url, LakeSource(url)
    # SHINAR_TOKEN fills in for the embedded broker's.
    named_by = "url" if args.url else "ledger"
    url = with_token(parse(args.url or job.source), settings, named_by=named_by)
    if _masked(url) and settings["url"]:
        url = with_token(parse(settings["url"]), settings)
    if _masked(url):
        why = "the ledger keeps no passwords or tokens; give the URL again"
        raise ConfigError(f"{why}: --url {job.source}", setting="url")
    if endpoint(url) != job.source_key:
        raise ConfigError(
            f"redrive {job.id} is about {job.source}; {url.masked} is another server", setting="url"
        )
    return url, None


def spec_of(args: argparse.Namespace, settings: Settings) -> Spec:
    from shinar.redrive import Spec

    return Spec(
        where=args.where,
        where_errors=args.where_errors,
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
        repair=args.repair,
    )


def redrive_of(
    args: argparse.Namespace, settings: Settings, ledger: Ledger, origin: Source, spec: Spec
) -> Redrive:
    from shinar.redrive import Redrive

    url, queue, source = origin
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
        patch=load_object(args.patch, "--patch") if args.patch else None,
        source=source,
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


def rate_of(text: str) -> float:
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?", text.strip())
    if match is None or not float(match[1]):
        raise ConfigError(f"{text!r} is not a rate; write 200/s, 50/m or 10/h", setting="--rate")
    return float(match[1]) / {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]
