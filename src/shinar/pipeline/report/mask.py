"""Personal data out of samples: e-mail addresses, and the values of fields that are named sensitive.

Works on text, because a sample is often a body that is not JSON. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from shinar.schemas.marks import MARK

#: What stands for a masked value.
MASKED: Final = "***"
#: Members whose values are masked whatever the schemas say.
ALWAYS: Final = frozenset(
    {"password", "passwd", "secret", "token", "access_token", "authorization", "api_key", "apikey", "iban"}
)
_EMAIL: Final = re.compile(r"[^\s\"'<>@,;:]{1,64}(?:@|\\u0040)[^\s\"'<>@,;:\\]{1,255}")
#: A JSON value up to where it ends, or to where the sample was cut off.
_VALUE: Final = r'\s*:\s*("(?:[^"\\]|\\.)*(?:"|\\?$)|[^\s",}\]]+)'


class Mask:
    """Call it with a text."""

    def __init__(self, fields: Iterable[str] = ()) -> None:
        names = "|".join(re.escape(name) for name in sorted(ALWAYS | set(fields)))
        self._member = re.compile(rf'("(?:{names})"){_VALUE}', re.IGNORECASE | re.DOTALL)

    def __call__(self, text: str) -> str:
        return _EMAIL.sub(MASKED, self._member.sub(rf'\1:"{MASKED}"', text))


def marked_fields(schemas: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names of the members that schemas mark as sensitive, also by a reference within the same schema."""
    return {name for schema in schemas for name in _marked(schema, schema)}


def _marked(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            members = node.get("properties")
            for name, part in members.items() if isinstance(members, dict) else ():
                if isinstance(part, dict) and (part.get(MARK) or _target(part, root).get(MARK)):
                    yield name


def _target(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    reference = part.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    for key in reference[2:].split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
