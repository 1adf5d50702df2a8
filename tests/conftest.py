"""What all tests share: real servers by mark or factory, and the profile of the property tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

import servers

#: In CI a missing server must not look like a passing test.
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "dev"))


def _acquire(name: str, *, tls: bool = False) -> servers.Server:
    try:
        return servers.acquire(name, tls=tls)
    except servers.ServerMissing as exc:
        if IN_CI:
            pytest.fail(f"{name}: {exc.reason}", pytrace=False)
        pytest.skip(f"{name}: {exc.reason}")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> servers.Server:
    """The server named by `@pytest.mark.live("redis")` (or `live("redis", tls=True)`), up and answering."""
    mark = request.node.get_closest_marker("live")
    if mark is None or len(mark.args) != 1:
        raise pytest.UsageError('the fixture `server` needs @pytest.mark.live("<name>")')
    return _acquire(mark.args[0], tls=mark.kwargs.get("tls", False))


@pytest.fixture
def live_server() -> Callable[..., servers.Server]:
    """`live_server("redis")`: for tests whose server is a parameter, or that need several."""
    return _acquire


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = servers.summary()
    if not lines:
        return
    terminalreporter.section("brokers")
    for line in lines:
        if line.missing:
            terminalreporter.write_line(f"{line.name:<16} NOT TESTED: {line.missing}")
        else:
            note = f"  ({line.note})" if line.note else ""
            terminalreporter.write_line(f"{line.name:<16} {line.version}{note}")
