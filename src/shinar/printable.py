"""Text from messages made safe for a terminal or a line of a text log. The one place that escapes it.

Whatever a message holds (a URN, an error, a header, a queue's name) may carry escape sequences, line ends or
bidirectional marks. Shown raw they move the cursor, write to the clipboard, forge a log line or reorder what
a person reads. JSON output does not need this: its encoder escapes control characters itself.
"""

from __future__ import annotations

import re
from typing import Final

#: C0 and C1 controls, DEL, line and paragraph separators, zero-width and bidirectional marks, the byte order
#: mark, interlinear marks, tag characters and lone surrogates.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = None) -> str:
    """`text` on one line, every unsafe character written as an escape; at most `limit` characters of it."""
    if limit is not None and len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return _UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for text of several lines (pretty-printed JSON, a traceback): line ends stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    code = ord(found)
    return _SHORT.get(found) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
