"""Where producers drift from each other and from the contract, per URN and language, from real traffic."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shinar.brokers.registry import projected_names
from shinar.pipeline.analysis.fields import fields
from shinar.pipeline.analysis.traces import local
from shinar.pipeline.typed.columns import TYPE_CLASH

#: Names that mean money: a binary fraction there loses cents sooner or later.
MONEY: Final = (
    r"(?i)(^|[^a-z])(amounts?|prices?|totals?|sub_?totals?|cost|costs|fees?|tax(es)?|vat|balances?|discounts?|"
    r"refund(ed)?|paid|charges?|salary|revenue|gross|net)($|[^a-z])"
)
#: A field on at least this share of a URN's messages counts as usual, for `missing_field`.
USUAL_SHARE: Final = 0.95
#: Fewer messages of a language than this prove nothing about its fields.
LEAST_MESSAGES: Final = 20

_COLUMNS: Final = ("urn", "lang", "pointer", "finding", "detail", "seen", "first_at", "last_at", "sample_id")
#: Facts of the envelope that brokers carry beside the body, and our column for each.
_FACTS: Final = ("urn", "trace_id", "id", "lang")


def drift(
    messages: DataFrame, since: datetime | None = None, *, rejects: DataFrame | None = None
) -> DataFrame:
    """One row per finding: `mixed_types`, `unsafe_integer`, `float_money`, `missing_field`, `forbidden_key`,
    `header_disagrees`, with `since` also `new_field` and `gone_field`, and with `rejects` (the table
    `typed_rejects`) `type_clash`."""
    # As many rows as fields: brought here once, so that each question below is a small local one.
    counted = local(fields(messages))
    found = [
        _mixed_types(counted),
        _unsafe(counted),
        _float_money(counted),
        _missing(counted),
        _forbidden(messages),
        _disagreeing(messages),
    ]
    if rejects is not None:
        found.append(_type_clashes(rejects))
    if since is not None:
        found += [_new(counted, since), _gone(counted, since)]
    result = found[0]
    for part in found[1:]:
        result = result.unionByName(part)
    return result.orderBy("urn", "finding", "pointer", "lang")


def _finding(frame: DataFrame, name: str, detail: Column) -> DataFrame:
    return frame.withColumn("finding", F.lit(name)).withColumn("detail", detail).select(*_COLUMNS)


def _real(counted: DataFrame) -> DataFrame:
    return counted.where("pointer != '' and kind != 'null'")


def _mixed_types(counted: DataFrame) -> DataFrame:
    """A whole number where others send fractions is not drift; text where others send numbers is."""
    family = F.when(F.col("kind") == "integer", "number").otherwise(F.col("kind"))
    typed = _real(counted).withColumn("family", family)
    usual = typed.groupBy("urn", "pointer", "family").agg(F.sum("seen").alias("n"))
    best = Window.partitionBy("urn", "pointer").orderBy(F.desc("n"), "family")
    ranked = usual.withColumn("rank", F.row_number().over(best))
    common = ranked.where("rank = 1").select("urn", "pointer", F.col("family").alias("usual"))
    odd = typed.join(common, ["urn", "pointer"]).where("family != usual")
    return _finding(
        odd, "mixed_types", F.concat_ws("", "kind", F.lit(" where "), "usual", F.lit(" is usual"))
    )


def _type_clashes(rejects: DataFrame) -> DataFrame:
    """Values that do not fit the column their field has: the messages lack a row in their typed table."""
    at = F.coalesce("created_at", "received_at")
    clashes = rejects.where(F.col("reason").startswith(f"{TYPE_CLASH}:")).select(
        "urn",
        "lang",
        "id",
        at.alias("at"),
        F.regexp_replace("pointer", "^/data", "").alias("pointer"),
        F.regexp_replace("reason", f"^{TYPE_CLASH}: ", "").alias("detail"),
    )
    return _finding(_grouped(clashes, "detail"), TYPE_CLASH, F.col("detail"))


def _unsafe(counted: DataFrame) -> DataFrame:
    beyond = counted.where("unsafe_integers > 0").withColumn("seen", F.col("unsafe_integers"))
    return _finding(beyond, "unsafe_integer", F.lit("beyond 2^53-1: Node and PHP may round it; send text"))


def _float_money(counted: DataFrame) -> DataFrame:
    name = F.regexp_replace(F.regexp_extract("pointer", r"([^/]+)(/\*)?$", 1), r"([a-z])([A-Z])", "$1_$2")
    floats = _real(counted).where((F.col("kind") == "number") & name.rlike(MONEY))
    return _finding(floats, "float_money", F.lit("a fraction in a field of money; send minor units or text"))


def _missing(counted: DataFrame) -> DataFrame:
    """Fields that the other languages of a URN (nearly) always send and this one does not."""
    totals = counted.where("pointer = ''").select(
        "urn", "lang", F.col("seen").alias("messages"), "first_at", "last_at", "sample_id"
    )
    all_messages = totals.groupBy("urn").agg(F.sum("messages").alias("all_messages"))
    top = counted.where(r"pointer != '' and instr(substr(pointer, 2), '/') = 0")
    per_lang = top.groupBy("urn", "lang", "pointer").agg(F.sum("seen").alias("seen"))
    usual = per_lang.groupBy("urn", "pointer").agg(F.sum("seen").alias("all_seen")).join(all_messages, "urn")
    mine = totals.join(usual, "urn").join(
        per_lang.select("urn", "lang", "pointer", F.col("seen").alias("have")),
        ["urn", "lang", "pointer"],
        "left",
    )
    have = F.coalesce(F.col("have"), F.lit(0))
    others = (F.col("all_seen") - have) / (F.col("all_messages") - F.col("messages"))
    lacking = mine.where(
        (F.col("messages") >= LEAST_MESSAGES)
        & (F.col("all_messages") > F.col("messages"))
        & (others >= USUAL_SHARE)
        & (have / F.col("messages") < 1 - USUAL_SHARE)
    ).withColumn("seen", F.col("messages") - have)
    return _finding(lacking, "missing_field", F.lit("other languages send it, this one does not"))


def _forbidden(messages: DataFrame) -> DataFrame:
    at = F.coalesce("created_at", "received_at")
    warned = messages.where(F.size("warnings") > 0).select(
        "urn", "lang", "id", at.alias("at"), F.explode("warnings").alias("pointer")
    )
    return _finding(
        _grouped(warned), "forbidden_key", F.lit("a key the contract drops; the producer must stop")
    )


def _disagreeing(messages: DataFrame) -> DataFrame:
    """Properties beside the body that say something else than the body."""
    at = F.coalesce("created_at", "received_at")
    names = {fact: sorted(projected_names()[fact]) for fact in _FACTS}
    checks = [
        F.when(F.col("properties")[name] != F.col(fact), F.lit(f"{name} disagrees with {fact}"))
        for fact, known in names.items()
        for name in known
    ]
    odd = messages.where("properties is not null").select(
        "urn", "lang", "id", at.alias("at"), F.explode(F.array_compact(F.array(*checks))).alias("pointer")
    )
    return _finding(_grouped(odd), "header_disagrees", F.col("pointer"))


def _grouped(rows: DataFrame, *also: str) -> DataFrame:
    return rows.groupBy("urn", "lang", "pointer", *also).agg(
        F.count(F.lit(1)).alias("seen"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.min("id").alias("sample_id"),
    )


def _new(counted: DataFrame, since: datetime) -> DataFrame:
    spans = _spans(counted)
    older = counted.where("pointer = ''").groupBy("urn").agg(F.min("first_at").alias("urn_first"))
    moment = F.lit(since).cast("timestamp")
    fresh = spans.join(older, "urn").where((F.col("first_at") >= moment) & (F.col("urn_first") < moment))
    return _finding(fresh, "new_field", F.lit("first seen since then"))


def _gone(counted: DataFrame, since: datetime) -> DataFrame:
    spans = _spans(counted)
    later = counted.where("pointer = ''").groupBy("urn", "lang").agg(F.max("last_at").alias("urn_last"))
    moment = F.lit(since).cast("timestamp")
    lost = spans.join(later, ["urn", "lang"]).where(
        (F.col("last_at") < moment) & (F.col("urn_last") >= moment)
    )
    return _finding(lost, "gone_field", F.lit("not seen since then"))


def _spans(counted: DataFrame) -> DataFrame:
    return (
        _real(counted)
        .groupBy("urn", "lang", "pointer")
        .agg(
            F.sum("seen").alias("seen"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.min("sample_id").alias("sample_id"),
        )
    )
