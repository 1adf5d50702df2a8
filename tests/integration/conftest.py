from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from shinar.pipeline.session import register, session


@pytest.fixture(scope="session")
def one_spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of the run: it takes seconds to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    """That session, made the active one again: other tests of the process have sessions of their own."""
    jvm = one_spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(one_spark._jsparkSession)
    return register(one_spark)
