"""Plans and receipts of a redrive as text. Everything that came from a message is escaped here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.redrive import Receipt

#: Kinds of skipped messages, in words.
WHY: Final = {
    "poison": "poison; --include-poison sends it too, and --repair php-empty-data mends PHP's empty payloads",
    "version": "a schema version that is not supported; --include-version sends it too",
    "loop": "died again after earlier redrives; see --loop-limit",
    "succeeded": "already processed",
    "schema": "the schema would refuse it; --include-invalid sends it too, --set can correct it",
    "dedup window": "the target would drop it as a duplicate; wait, or give it a new id with --set",
    "no target": "the original queue is not known; name one with --to",
    "patch": "the change does not fit it",
    "too large": "the target does not accept a message of that size",
    "not text": "the target accepts text only",
    "outside": "the dead letter names a queue that this dead-letter queue does not belong to; --any-target "
    "sends it there, --to somewhere else",
    "claimed": "claimed by another redrive; resume or cancel that one",
    "already sent": "already sent back by another redrive",
    "gone": "not delivered: no longer in the queue, or reserved by another consumer",
}
#: Kinds whose first reason is worth reading.
_TELLING: Final = frozenset({"patch", "schema", "too large", "dedup window", "outside", "claimed"})
#: Characters of a line of the sample, and of a payload in it.
_LINE, _PAYLOAD = 160, 400


def reason(kind: str, examples: Mapping[str, str]) -> str:
    """A kind of skipped messages in words, with an example where that helps."""
    detail = examples.get(kind, "").partition(": ")[2] if kind in _TELLING else ""
    return WHY.get(kind, printable(kind)) + (f" (e.g. {printable(detail, 120)})" if detail else "")


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
        print(f"  {'':>9}   {count:,} {printable(why)}")
    if receipt.left:
        print(f"  {receipt.left:>9,} not done yet")


def print_plan(plan: Mapping[str, Any], title: str, ids: int, out: TextIO) -> None:
    looked = f"{plan['looked']:,}" if plan["complete"] else f"the first {plan['looked']:,}"
    print(f"{title}: {plan['selected']:,} of {looked} dead letters are selected", file=out)
    if ids and plan["complete"] and plan["selected"] < ids:
        print(f"  {ids - plan['selected']:>9,} of {ids:,} ids were not found", file=out)
    for queue, count in sorted(plan["targets"].items()):
        print(f"  {count:>9,} would go to {printable(queue)}", file=out)
    if plan["sendable"]:
        print(f"  {plan['bytes']:>9,} bytes", file=out)
    for why, count in sorted(plan["why_skipped"].items()):
        print(f"  {count:>9,} skipped: {reason(why, plan['examples'])}", file=out)
    if plan["reserved"]:
        print(f"  {plan['reserved']:>9,} more are reserved and cannot be browsed now", file=out)
    if plan["already"]:
        print(f"  {plan['already']:>9,} of this log were sent back before and are left out", file=out)
    if plan["died_again"]:
        print(f"  {plan['died_again']:>9,} of these died again after an earlier redrive", file=out)
    for one in plan["sample"]:
        text = f"{one['id']} {one['urn']} -> {one['target']}: {one['error'] or ''}"
        print(f"  e.g. {printable(text, _LINE)}", file=out)
        if one["before"] or one["after"]:
            print(f"         data before  {printable(one['before'], _PAYLOAD)}", file=out)
            print(f"         data after   {printable(one['after'], _PAYLOAD)}", file=out)
