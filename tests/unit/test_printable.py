"""Nothing a message holds can move a terminal or forge a line."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字 👍", "plain ünïcode 漢字 👍"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("half \ud83d", "half \\ud83d"),
        ("\u2028line", "\\u2028line"),
        ("\U000e0041", "\\ue0041"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert not any(
        unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in shown
    )
    shown.encode()


def test_lines_stay_lines_and_a_limit_holds() -> None:
    assert printable_lines('{\n  "a": "\x1b"\n}') == '{\n  "a": "\\x1b"\n}'
    assert printable("x" * 100, 10) == "x" * 9 + "…"
