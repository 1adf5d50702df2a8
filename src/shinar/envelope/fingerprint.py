"""Which failures are the same failure: a stable short name for a dead letter. Pure, no I/O.

Two dead letters belong together when reason, exception, error text without its variable parts, URN, language
and original queue agree. The `dlq` commands and the Spark job both call `fingerprint`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

#: Hex digits of a fingerprint: 48 bits, so that ten thousand kinds of failure do not collide.
LENGTH: Final = 12
#: An error text is compared by its first lines up to this many characters; stack traces follow later.
TEMPLATE_CHARS: Final = 240

#: The reason of a handler that gave up. It is left out, so that older fingerprints stay as they are.
_USUAL_REASON: Final = "failed"

#: Variable parts and what stands for them, in this order: the specific before the general.
_VARIABLE: Final = tuple(
    (re.compile(pattern), sign)
    for pattern, sign in (
        (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "<time>"),
        (r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+", "<url>"),
        (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "<email>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<ip>"),
        (r"\"[^\"\n]{0,400}\"|'[^'\n]{0,400}'|`[^`\n]{0,400}`", "<text>"),
        (r"(?:(?<=[\s(=:,])|^)(?:[A-Za-z]:)?[/\\][^\s:,;()'\"]+", "<path>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
        (r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
        (r"(?<![A-Za-z])[-+]?\d+(?:[_.,]\d+)*(?:[eE][-+]?\d+)?", "<n>"),
        # A name that ends in a number (order-123, SKU42) is a name with a variable end.
        (r"\d+", "<n>"),
    )
)
_SPACE: Final = re.compile(r"\s+")
_REPEAT: Final = re.compile(r"(<\w+>)(?:[\s,;]+\1)+")
#: Namespaces of PHP, Java, .NET, Go, Python and JavaScript: only the last name tells.
_NAMESPACE: Final = re.compile(r"^.*[\\./:](?=[^\\./:])")
#: What runtimes add to a class that has no name of its own.
_ANONYMOUS: Final = re.compile(r"(?:@anonymous|\$\$Lambda|\$\d+|@[0-9a-f]{4,}).*$", re.DOTALL)


def fingerprint(
    exception: str | None,
    error: str | None,
    urn: str | None,
    lang: str | None,
    original_queue: str | None,
    reason: str | None = None,
) -> str:
    """`lang` is the language of the consumer that gave up, where the dead letter says it."""
    return _named(exception_name(exception), error_template(error), urn, lang, original_queue, reason)


#: A queue of a million dead letters has a few dozen kinds.
@lru_cache(maxsize=4096)
def _named(
    exception: str,
    template: str,
    urn: str | None,
    lang: str | None,
    original_queue: str | None,
    reason: str | None,
) -> str:
    parts = [exception, template, urn or "", (lang or "").lower(), original_queue or ""]
    if reason and reason != _USUAL_REASON:
        parts.append(reason)
    return sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


@lru_cache(maxsize=4096)
def exception_name(exception: str | None) -> str:
    """The class alone: `App\\Jobs\\GatewayTimeout` and `GatewayTimeout` are the same failure."""
    if not exception:
        return ""
    text = _ANONYMOUS.sub("", exception.strip())
    return _NAMESPACE.sub("", text) or text


@lru_cache(maxsize=4096)
def error_template(text: str | None) -> str:
    """The error text with ids, numbers, times, quotes, paths and addresses taken out."""
    if not text:
        return ""
    # A variable part cut in two at the limit would make two templates of one.
    template = text[: TEMPLATE_CHARS * 8]
    for pattern, sign in _VARIABLE:
        template = pattern.sub(sign, template)
    template = _REPEAT.sub(r"\1", _SPACE.sub(" ", template).strip())
    return template[:TEMPLATE_CHARS]
