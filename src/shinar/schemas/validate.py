"""One payload against one draft-07 schema, by the `jsonschema` package. Reads no file, no network.

Errors give the pointer and the rule that is broken, never the value: it may be personal, and error
texts end up in logs and dead letters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from shinar.errors import ConfigError, ContractError, MissingExtra

#: What `$schema` may say; nothing is as good.
DRAFT_07: Final = frozenset(
    f"{scheme}://json-schema.org/draft-07/schema{tail}" for scheme in ("http", "https") for tail in ("", "#")
)
#: Longest part of a broken rule that an error quotes.
_RULE_CHARS: Final = 120
#: Compiled validators of `conforms`, by the schema's text.
_CACHE: Final = 256


class Validator(Protocol):
    """The part of a jsonschema validator that is used here."""

    def iter_errors(self, instance: Any) -> Iterable[Any]: ...


def conforms(schema: Mapping[str, Any], data: object) -> bool:
    """Whether the payload fulfils the schema. An invalid schema raises ConfigError."""
    return first_violation(_compiled(msgspec.json.encode(schema)), data) is None


def check(validator: Validator, data: object) -> None:
    violation = first_violation(validator, data)
    if violation is not None:
        raise violation


def first_violation(validator: Validator, data: object) -> ContractError | None:
    try:
        error = next(iter(validator.iter_errors(data)), None)
    except RecursionError:
        return ContractError("is nested too deep to be validated; flatten it", pointer="/data")
    except _unresolvable() as exc:
        raise ConfigError(
            f"the schema's $ref {exc.ref!r} does not lead to a schema", setting="schema"
        ) from None
    return None if error is None else _violation(error)


def compile_schema(schema: object, origin: str, registry: Any = None) -> Validator:
    """A reusable validator; `registry` resolves references to other documents, or there are none."""
    library = _library()
    if not isinstance(schema, Mapping):
        raise ConfigError("a schema is a JSON object", setting="schema", origin=origin)
    declared = schema.get("$schema")
    if declared is not None and declared not in DRAFT_07:
        raise ConfigError(
            f"declares {declared!r}; payload schemas are draft-07", setting="$schema", origin=origin
        )
    try:
        library.Draft7Validator.check_schema(schema)
    except library.SchemaError as exc:
        where = pointer(exc.absolute_path) or "the schema"
        raise ConfigError(f"{where}: {exc.message}", setting="schema", origin=origin) from None
    if registry is None:
        from referencing import Registry

        registry = Registry()  # empty on purpose: the package's default would fetch over the network
    validator: Validator = library.Draft7Validator(schema, registry=registry)
    return validator


def pointer(path: Iterable[object]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@functools.lru_cache(maxsize=_CACHE)
def _compiled(text: bytes) -> Validator:
    return compile_schema(msgspec.json.decode(text), "the caller")


def _unresolvable() -> Any:
    from referencing.exceptions import Unresolvable

    return Unresolvable


def _library() -> Any:
    try:
        import jsonschema
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "jsonschema":
            raise
        raise MissingExtra("payload schemas", "jsonschema", "schemas") from None
    return jsonschema


def _violation(error: Any) -> ContractError:
    path = ["data", *error.absolute_path]
    rule, wanted, value = error.validator, error.validator_value, error.instance
    if rule is None:
        return ContractError("is not allowed: its schema is false", pointer=pointer(path))
    if rule == "required":
        missing = next((name for name in wanted if name not in value), "")
        return ContractError("is required and missing", pointer=pointer([*path, missing]))
    if rule == "additionalProperties" and wanted is False:
        known = error.schema.get("properties", {})
        extra = [name for name in value if name not in known] if isinstance(value, Mapping) else []
        # With patternProperties more than one may be unknown here; one that is surely not listed will do.
        return ContractError("is not a property of the schema", pointer=pointer([*path, *extra[:1]]))
    quoted = msgspec.json.encode(wanted).decode()
    shown = quoted if len(quoted) <= _RULE_CHARS else quoted[:_RULE_CHARS] + "…"
    return ContractError(f"breaks the schema's rule {rule}: {shown}", pointer=pointer(path))
