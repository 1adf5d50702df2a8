from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from shinar.pipeline.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of the run: it takes seconds to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
