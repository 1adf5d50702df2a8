"""`--where` means what Spark SQL means: random expressions, our evaluator and Spark itself, the same answers.

Dead letters come in shapes: within a shape every member has one VARIANT type, so that Spark can be given the
same letters as a table with typed columns. Equal is: the same value for every letter, or both refuse.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from shinar.errors import ConfigError, ExpressionError
from shinar.redrive.select.casts import cast_to
from shinar.redrive.select.expression import Expression
from shinar.redrive.select.payload import decode, typed
from shinar.redrive.select.tree import COLUMNS
from shinar.redrive.select.types import DOUBLE, STRING, VOID
from unit.pipeline.lakes import spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LETTERS = 25
#: Refused expressions that Spark is asked about, per shape and batch: each costs a question of its own.
MAX_REFUSALS = 2
NOON_MS = 1_763_172_600_000
NAMES = ["apple", "Äpfel", "", " 7 ", "7.0", "true", "x%y", "a_b\\c", "2025-11-15", "1e2", "naïve 😀", "zzz"]
#: shape -> member -> its JSON texts, all of one VARIANT type
SHAPES: dict[str, dict[str, list[str]]] = {
    "shop": {
        "amount": [
            str(n) for n in (0, 1, -1, 3, 7, 10, 19, 100, 2**31, -(2**31), 9007199254740993, 2**63 - 1)
        ],
        "price": ["19.99", "10.01", "-12.34", "99.95", "11.11"],
        "ratio": ["0.5e0", "1e2", "-2.5e0", "1e-7", "1.005e0", "2.675e0", "1e300"],
        "flag": ["true", "false"],
        "name": [json.dumps(name) for name in NAMES],
        "maybe": ["null"],
    },
    "texts": {
        "amount": ['"5"', '"100"', '" 42 "', '"7.0"', '"abc"', '""'],
        "price": ['"19.99"', '"x"'],
        "ratio": ['"0.5"', '"nan"', '"Infinity"'],
        "flag": ['"true"', '"no"', '"T"', '"maybe"'],
        "name": ['"5"', '"yes"', '"2025-11-15 02:10:00"'],
        "maybe": ["1", "2", "3"],
    },
    "numbers": {
        "amount": ["12345678901234567890", "98765432109876543211"],
        "price": ["0.001", "0.123", "-0.999"],
        "ratio": ["3", "-4", "5"],
        "flag": ["true", "false"],
        "name": ["1.5", "2.5", "-2.5", "3.5"],
        "maybe": ["false", "true"],
    },
    "sparse": {
        "amount": ["null"],
        "price": ["1", "2", "3", "0"],
        "ratio": ["null"],
        "flag": ["null"],
        "name": ['"a"', '"b"', '"AB"'],
        "maybe": ["1.25", "2.75"],
    },
}
SPARK_COLUMNS = {
    "urn": "string",
    "lang": "string",
    "error": "string",
    "attempts": "bigint",
    "failed_at": "timestamp",
}


def rows_of(shape: str) -> list[dict[str, Any]]:
    """The rows our evaluator sees; "json" is the payload as text."""
    found = []
    for n in range(LETTERS):
        members = {name: texts[n % len(texts)] for name, texts in SHAPES[shape].items()}
        text = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {
            "urn": f"urn:babel:orders:{'created' if n % 2 else 'paid'}",
            "lang": ["php", "go", None, "Node"][n % 4],
            "error": ["gateway said 504", "100%", "", "order 7"][n % 4],
            "attempts": [1, 3, None][n % 3],
            "failed_at": NOON_MS + n * 1000 + n,
            "data": decode(f'{{"data":{text}}}'.encode()),
            "json": text,
        }
        found.append(row)
    return found


@cache
def session() -> Any:
    """A session that evaluates an expression as it stands: nothing is folded or simplified, so that
    an error is raised by a row that needs the value, and by no other."""
    found = spark().newSession()
    rules = [
        "ConstantFolding",
        "BooleanSimplification",
        "NullPropagation",
        "LikeSimplification",
        "OptimizeIn",
    ]
    rules += [
        "SimplifyBinaryComparison",
        "SimplifyCasts",
        "UnwrapCastInBinaryComparison",
        "ReorderAssociativeOperator",
    ]
    rules += [
        "NullDownPropagation",
        "ReplaceNullWithFalseInPredicate",
        "SimplifyConditionals",
        "CombineConcats",
    ]
    rules += ["PushFoldableIntoBranches", "ConstantPropagation", "SimplifyCaseConversionExpressions"]
    excluded = ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in rules)
    found.conf.set("spark.sql.optimizer.excludedRules", excluded)
    found.conf.set("spark.sql.ansi.enabled", "true")
    found.conf.set("spark.sql.session.timeZone", "UTC")
    return found


@cache
def frame(shape: str) -> Any:
    """An inline table: Spark evaluates a projection of it while planning, so that a question costs no job."""
    rows = rows_of(shape)
    types = {name: typed(rows[0]["data"][name])[0] for name in SHAPES[shape]}
    lines = []
    for n, row in enumerate(rows):
        plain = [_sql(row[name], type_) for name, type_ in SPARK_COLUMNS.items()]
        members = [f"'{name}', {_sql(typed(row['data'][name])[1], str(types[name]))}" for name in types]
        lines.append(f"({', '.join(plain)}, named_struct({', '.join(members)}), {n})")
    names = ", ".join([*SPARK_COLUMNS, "data", "n"])
    return session().sql(f"select * from values {', '.join(lines)} as t({names})")


def _sql(value: Any, type_: str) -> str:
    if value is None:
        return "null" if type_ == "VOID" else f"cast(null as {type_})"
    if type_ == "timestamp":
        return f"timestamp_millis({value})"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"cast('{quoted}' as {type_})"


@pytest.mark.parametrize("shape", SHAPES)
def test_members_have_the_types_of_a_variant(shape: str) -> None:
    rows = rows_of(shape)
    frame = session().createDataFrame([(row["json"],) for row in rows], "json string")
    for name in SHAPES[shape]:
        expression = f"schema_of_variant(variant_get(parse_json(json), '$.{name}')) as type"
        theirs = {row["type"] or "VOID" for row in frame.selectExpr(expression).collect()}
        assert {str(typed(row["data"][name])[0]) for row in rows} == theirs, name


# -- expressions

MEMBERS = [f"data.{name}" for name in SHAPES["shop"]] + ["data.missing"]
INTEGERS = st.sampled_from(["0", "1", "2", "5", "7", "10", "100", "-3", "2147483647", "9007199254740993"])
FRACTIONS = st.sampled_from(["0.1", "0.5", "1.50", "-2.5", "19.99", "1e2", "2.5e0", "1e-3"])
TEXTS = st.sampled_from(
    ["'5'", "'7.0'", "'true'", "'php'", "'apple'", "''", "'a%'", "'%a%'", "'it''s'", "'_\\\\_b%'"]
)
TIMES = st.sampled_from(["'2025-11-15 02:10:03'", "timestamp '2025-11-15T02:10:05Z'", "date '2025-11-15'"])
NUMBERS = st.one_of(
    st.sampled_from(["data.amount", "data.price", "data.ratio", "attempts", "data.maybe"]),
    INTEGERS,
    FRACTIONS,
)
STRINGS = st.one_of(st.sampled_from(["data.name", "lang", "error", "urn"]), TEXTS)
ANYTHING = st.one_of(
    NUMBERS,
    STRINGS,
    st.sampled_from([*MEMBERS, "failed_at", "true", "false", "null"]),
    st.sampled_from(["data.flag"]),
)
TYPES = st.sampled_from(["string", "boolean", "int", "bigint", "double", "decimal(10,2)", "decimal(38,18)"])


def larger_numbers(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(numbers, numbers)
    return st.one_of(
        st.builds("({0[0]} {1} {0[1]})".format, pairs, st.sampled_from(["+", "-", "*", "/", "%"])),
        st.builds("{0}({1})".format, st.sampled_from(["abs", "round", "-"]), numbers),
        st.builds("round({0}, {1})".format, numbers, st.sampled_from(["0", "1", "2", "-1", "-2", "5"])),
        st.builds("coalesce({0[0]}, {0[1]})".format, pairs),
    )


def larger_strings(strings: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({0} || {1})".format, strings, strings),
        st.builds("{0}({1})".format, st.sampled_from(["lower", "upper", "trim"]), strings),
        st.builds("substr({0}, {1}, {2})".format, strings, INTEGERS, INTEGERS),
        st.builds("coalesce({0}, {1})".format, strings, strings),
    )


def wrap(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger values made of smaller ones, whatever their types are."""
    pairs = st.tuples(values, values)
    return st.one_of(
        st.builds("({0[0]} {1} {0[1]})".format, pairs, st.sampled_from(["+", "-", "*", "/", "%", "||"])),
        st.builds(
            "{0}({1})".format, st.sampled_from(["abs", "round", "lower", "upper", "length", "trim"]), values
        ),
        st.builds("round({0}, {1})".format, values, st.sampled_from(["0", "1", "2", "-1", "-2", "5"])),
        st.builds("substr({0}, {1}, {2})".format, values, INTEGERS, INTEGERS),
        st.builds("coalesce({0[0]}, {0[1]})".format, pairs),
        st.builds("{0}({1} as {2})".format, st.sampled_from(["cast", "try_cast"]), values, TYPES),
        st.builds("(- {0})".format, values),
    )


MIXED = st.recursive(st.one_of(NUMBERS, STRINGS, ANYTHING), wrap, max_leaves=4)
LARGE_NUMBERS = st.recursive(NUMBERS, larger_numbers, max_leaves=4)
LARGE_STRINGS = st.recursive(STRINGS, larger_strings, max_leaves=3)


def conditions(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(values, values)
    return st.one_of(
        st.builds(
            "{0[0]} {1} {0[1]}".format, pairs, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"])
        ),
        st.builds("failed_at {0} {1}".format, st.sampled_from(["<", ">=", "="]), TIMES),
        st.builds("{0} is {1}null".format, values, st.sampled_from(["", "not "])),
        st.builds("{0} {1}like {2}".format, values, st.sampled_from(["", "not "]), TEXTS),
        st.builds("{0} {1}in ({2[0]}, {2[1]})".format, values, st.sampled_from(["", "not "]), pairs),
        st.builds("{0} between {1[0]} and {1[1]}".format, values, pairs),
        st.builds(
            "{0}({1}, {2})".format, st.sampled_from(["contains", "startswith", "endswith"]), values, TEXTS
        ),
        st.sampled_from(["data.flag", "data.maybe"]),
    )


def joined(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({0}) {1} ({2})".format, smaller, st.sampled_from(["and", "or"]), smaller),
        st.builds("not ({0})".format, smaller),
    )


def expressions(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.recursive(conditions(values), joined, max_leaves=3), conditions(values), values)


#: Mostly of one type, so that most have an answer; the mixed ones are for the casts.
EXPRESSIONS = st.one_of(expressions(LARGE_NUMBERS), expressions(LARGE_STRINGS), expressions(MIXED))


# -- both engines


def ours(text: str, shape: str) -> list[Any] | str:
    """A value per letter as Spark prints it, or why it is refused."""
    try:
        expression = Expression(text)
        found = [expression.typed_value(row) for row in rows_of(shape)]
    except (ConfigError, ExpressionError) as exc:
        return str(exc)
    return [_printed(type_, value) for type_, value in found]


def _printed(type_: Any, value: Any) -> Any:
    if value is None or type_ == VOID:
        return None
    if type_ == DOUBLE:
        return float(value)
    cast = cast_to(type_, STRING)
    return value if cast is None else cast(value)


def theirs(texts: list[str], shape: str) -> list[list[Any]] | Exception:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    table = frame(shape)
    try:
        found = table.selectExpr("n", *(f"{text} as e{at}" for at, text in enumerate(texts)))
        plain = []
        for field in found.schema.fields[1:]:
            kind = field.dataType.simpleString()
            plain.append(field.name if kind == "double" else f"cast({field.name} as string) {field.name}")
        rows = sorted(found.selectExpr("n", *plain).collect())
    except (PySparkException, Py4JError) as exc:
        return exc
    return [[row[at + 1] for row in rows] for at in range(len(texts))]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other)


def check(texts: list[str]) -> None:
    for shape, members in SHAPES.items():
        untyped = [f"data.{name}" for name, values in members.items() if values == ["null"]] + [
            "data.missing",
            "null",
        ]
        answers = {text: ours(text.replace("data.missing", "data.maybe"), shape) for text in texts}
        batch = [text for text in texts if isinstance(answers[text], list)]
        found = theirs([text.replace("data.missing", "data.maybe") for text in batch], shape) if batch else []
        refusals = 0
        for at, text in enumerate(texts):
            if isinstance(answers[text], list) and isinstance(found, list):
                spark_says: Any = found[batch.index(text)]
            else:
                refusals += isinstance(answers[text], str)
                if refusals > MAX_REFUSALS and isinstance(answers[text], str):
                    continue
                alone = theirs([text.replace("data.missing", "data.maybe")], shape)
                spark_says = alone if isinstance(alone, Exception) else alone[0]
            lenient = any(name in text for name in untyped)
            _compare(f"{shape}: {texts[at]}", answers[text], spark_says, lenient=lenient)


def _compare(what: str, our: list[Any] | str, their: Any, *, lenient: bool) -> None:
    if isinstance(their, Exception):
        # Where Spark has no rule for a NULL without a type, ours is NULL instead of an error.
        assert isinstance(our, str) or (lenient and "DATATYPE_MISMATCH" in str(their)), (
            f"{what}: {our} / {str(their)[:300]}"
        )
        return
    assert not isinstance(our, str), f"{what}: we say {our}, Spark {their}"
    wrong = [
        (n, one, other) for n, (one, other) in enumerate(zip(our, their, strict=True)) if not same(one, other)
    ]
    assert not wrong, f"{what}: (letter, ours, Spark) {wrong[:3]}"


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # shrinking asks Spark a thousand times
)
@given(st.lists(EXPRESSIONS, min_size=20, max_size=20, unique=True))
@example(["data.amount >= '100'", "data.price % 1 = 0", "data.flag = 'true'", "data.amount = '7.0'"])
@example(["data.amount * 0.1 = 0.3", "substr(data.name, 0, 2)", "round(data.amount, -1)", "lower(data.flag)"])
@example(
    [
        "substr(data.name, 3, -1)",
        "data.amount / 0 = 1",
        "data.ratio = 1e2",
        "data.price * 100",
        "-data.amount",
    ]
)
def test_the_same_answers_as_spark(texts: list[str]) -> None:
    check(texts)


def test_decimals_are_exact() -> None:
    check(
        ["data.price * 100 = round(data.price * 100)", "data.price + 0.1 - 0.1 = data.price", "1.0 / 3 * 3"]
    )
    assert typed(Decimal("1.50")) == (("DECIMAL", 2, 1), Decimal("1.5"))
