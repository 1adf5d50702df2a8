"""The short form of `make soak`, for CI: minutes instead of half an hour, the same sums."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import servers
from soak.run import BROKERS, soak

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
SECONDS = 25.0


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_everything_at_once_adds_up(tmp_path: Path) -> None:
    try:
        results = soak(tmp_path, list(BROKERS), SECONDS, seed=20_261_116)
    except servers.ServerMissing as exc:
        if IN_CI:
            pytest.fail(exc.reason, pytrace=False)
        pytest.skip(exc.reason)
    for result in results:
        print(result)
    assert [result["problems"] for result in results] == [[]] * len(BROKERS)
    assert all(result["sent"] > 500 and result["kills"] for result in results)
