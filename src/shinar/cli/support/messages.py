"""A message for people: described as one JSON-able value, and printed. Shared by `tail` and `inspect`.

Whatever comes from a message is untrusted text: it goes to the terminal through `shinar.printable` only.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from shinar.cli.support.output import colours, time_text
from shinar.printable import printable, printable_lines


def describe(body: bytes, **beside: Any) -> dict[str, Any]:
    """A body and the verdict on it; `beside` is what else is known of it (headers, position)."""
    from shinar.envelope import judge, parse_strict

    verdict = judge(body)
    described: dict[str, Any] = {
        "verdict": str(verdict.kind),
        "reason": str(verdict.reason),
        "pointer": verdict.pointer,
        "warnings": [str(warning) for warning in verdict.warnings],
        **{name: value for name, value in beside.items() if value},
    }
    if verdict.message is not None:
        described["envelope"] = parse_strict(body)
        created_ms = verdict.message.meta.created_at
        if created_ms:
            described["created_at"] = time_text(created_ms)
    else:
        try:
            described["raw"] = body.decode("utf-8")
        except UnicodeDecodeError:
            described["raw_base64"] = base64.b64encode(body).decode("ascii")
    return described


def print_description(described: dict[str, Any]) -> None:
    for line in _lines(described):
        print(line)


def _lines(described: dict[str, Any]) -> list[str]:
    mark = described["verdict"]
    if colours():
        mark = f"\x1b[{32 if mark == 'accepted' else 31}m{mark}\x1b[0m"
    why = " ".join(printable(part) for part in (described["reason"], described["pointer"]) if part)
    envelope = described.get("envelope") or {}
    title = printable(str(envelope.get("job") or envelope.get("urn") or ""))
    head = [mark, f"({why})" if why else "", title, described.get("created_at", "")]
    notes = [f"  warning: {printable(warning)}" for warning in described["warnings"]]
    notes += [
        f"  {name}: {printable(str(described[name]))}"
        for name in ("position", "headers")
        if described.get(name)
    ]
    body = [f"  {line}" for line in printable_lines(_body_text(described)).split("\n")]
    return ["  ".join(part for part in head if part), *notes, *body]


def _body_text(described: dict[str, Any]) -> str:
    if "envelope" not in described:
        return str(described.get("raw") or described.get("raw_base64") or "")
    return json.dumps(described["envelope"], ensure_ascii=False, indent=2)
