"""`shinar dlq list` and `shinar dlq show`: single dead letters, as a line or in full."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from shinar.cli.support.dead_letters import from_lake, ledger_of, selected
from shinar.cli.support.output import address, emit, settings_of, time_text
from shinar.printable import printable, printable_lines

if TYPE_CHECKING:
    from shinar.redrive import Ledger, Letter
    from shinar.redrive.ledger.sent_back import SentBack

#: Characters of an error, and of any other text of a message, in a list.
_CELL, _NAME = 70, 120


def run(args: argparse.Namespace) -> int:
    return _list(args) if args.view == "list" else _show(args)


def _list(args: argparse.Namespace) -> int:
    with selected(args, args.limit or 50) as (found, _):
        for letter in found:
            row = _row(letter)
            if args.json:
                emit(row)
                continue
            what = letter.exception or letter.reason or letter.nature
            cells = (row["id"] or "-", row["urn"] or "-", what)
            texts = "  ".join(printable(str(cell), _NAME) for cell in cells)
            error = printable((letter.error or "").replace("\n", " "), _CELL)
            print(f"{time_text(letter.at_ms)}  {letter.fingerprint[:8]}  {texts}  {error}")
    return 0


def _show(args: argparse.Namespace) -> int:
    with selected(args, args.limit or 5) as (found, _):
        ledger = ledger_of(args)
        try:
            sent_back = _sent_back(args, ledger)
            for letter in found:
                row = _details(letter) | _before(letter, ledger, sent_back)
                if args.json:
                    emit(row)
                else:
                    print(printable_lines(_text(row)))
        finally:
            if ledger is not None:
                ledger.close()
    return 0


def _sent_back(args: argparse.Namespace, ledger: Ledger | None) -> SentBack | None:
    from shinar.brokers import traits
    from shinar.redrive.ledger.sent_back import SentBack

    if ledger is None or from_lake(args):
        return None
    url, queue = address(args, settings_of(args))
    return SentBack(url, queue, traits(url), ledger)


def _before(letter: Letter, ledger: Ledger | None, sent_back: SentBack | None) -> dict[str, Any]:
    """How often it was sent back, and died again; or that this very record of a log was, and by which job."""
    sent = ledger.generations([letter.id]) if ledger is not None and letter.id else {}
    by = sent_back.by([letter.delivery])[0] if sent_back is not None else ""
    return {"redriven": 0 if by else sent.get(letter.id or "", 0), "sent_back_by": by or None}


def _row(letter: Letter) -> dict[str, Any]:
    from shinar.redrive.letters.repair import claimed

    said = claimed(letter)
    return {
        "id": said.id,
        "urn": said.urn,
        "trace_id": letter.trace_id,
        "lang": letter.lang,
        "reason": letter.reason,
        "exception": letter.exception,
        "error": letter.error,
        "attempts": letter.attempts,
        "original_queue": letter.said_queue,
        "created_at": letter.created_ms,
        "failed_at": letter.failed_ms,
        "nature": str(letter.nature),
        "fingerprint": letter.fingerprint,
        "position": letter.delivery.position,
        "bytes": len(letter.delivery.body),
    }


def _details(letter: Letter) -> dict[str, Any]:
    from shinar.envelope import unwrap_poison
    from shinar.redrive.letters.exchange import plain
    from shinar.redrive.letters.properties import beside

    delivery = letter.delivery
    row = _row(letter) | {
        "headers": dict(delivery.headers),
        "properties": {name: plain(value) for name, value in delivery.properties.items()},
        "beside": [list(one) for one in beside(letter)],
        "warnings": [str(warning) for warning in letter.verdict.warnings],
    }
    if letter.message is not None:
        return row | {"envelope": json.loads(delivery.body)}
    raw = unwrap_poison(delivery.body) if letter.reason is not None else delivery.body
    return row | {"raw_text": raw.decode("utf-8", "backslashreplace"), "raw_hex": raw[:256].hex(" ")}


def _text(row: dict[str, Any]) -> str:
    """The dead letter in full. A text of the message keeps to its own line."""
    lines = [f"--- {_one(row['id'] or row['position'])}  {row['nature']}  {row['fingerprint']}"]
    lines += _death(row)
    if row["sent_back_by"]:
        lines.append(f"again    already sent back by redrive {row['sent_back_by']}; the log keeps it")
    if row["redriven"]:
        lines.append(f"again    died again after redrive {row['redriven']}")
    if row["headers"]:
        lines.append(f"headers  {json.dumps(row['headers'], ensure_ascii=False)}")
    for name, said, in_body, agrees in row["beside"]:
        lines.append(f"{'  ' if agrees else '!!'} {_one(name):<20} {_one(said):<40} body: {_one(in_body)}")
    lines += [f"warning  {_one(warning)}" for warning in row["warnings"]]
    if "envelope" in row:
        lines.append(json.dumps(row["envelope"], indent=2, ensure_ascii=False))
    else:
        lines.append(f"raw      {_one(row['raw_text'])}\nbytes    {row['raw_hex']}")
    return "\n".join(lines) + "\n"


def _death(row: dict[str, Any]) -> list[str]:
    if row["failed_at"] is None and row["original_queue"] is None:
        died = f"not recorded; made {time_text(row['created_at'])}"
    else:
        queue = _one(row["original_queue"] or "a queue that is not recorded")
        died = f"{time_text(row['failed_at'])} on {queue}"
    causes = [_one(text) for text in (row["exception"] or row["reason"], row["error"]) if text]
    return [
        f"died     {died}, attempts {row['attempts']}",
        f"error    {': '.join(causes) or 'not recorded'}",
    ]


def _one(value: object) -> str:
    return printable(str(value))
