"""The rule itself (contract rules, chapter 9), on the memory store."""

from __future__ import annotations

import logging

import pytest

from shinar.clock import PinnedClock
from shinar.errors import BrokerUnavailable, ConfigError, StoreError, UnknownScheme
from shinar.idempotency import MemoryStore, Store, guard, open_store, usable_id


class Effects:
    def __init__(self, fail: bool = False) -> None:
        self.count = 0
        self.fail = fail

    def __call__(self) -> None:
        self.count += 1
        if self.fail:
            raise RuntimeError("handler")


@pytest.mark.parametrize("value", [None, "", 7, True, b"id", ["id"], {}])
def test_what_is_no_id_runs_every_time(value: object) -> None:
    store, effects = MemoryStore(), Effects()
    assert usable_id(value) is None
    assert guard(store, value, effects)
    assert guard(store, value, effects)
    assert effects.count == 2


@pytest.mark.parametrize("value", [" ", " a", "a\n", "ЖЖ", "\0", "a" * 5000])
def test_an_id_is_kept_verbatim(value: str) -> None:
    store, effects = MemoryStore(), Effects()
    assert usable_id(value) == value
    assert guard(store, value, effects)
    assert not guard(store, value, effects)
    assert guard(store, value + " ", effects)
    assert effects.count == 2


def test_a_raise_leaves_no_mark_and_passes_through() -> None:
    store, failing, working = MemoryStore(), Effects(fail=True), Effects()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="handler"):
            guard(store, "a", failing)
    assert failing.count == 2
    assert guard(store, "a", working)
    assert not guard(store, "a", working)


def test_forgetting_lets_it_run_again() -> None:
    store, effects = MemoryStore(), Effects()
    guard(store, "a", effects)
    store.forget(["a", "never seen"])
    assert guard(store, "a", effects)


def test_marks_end() -> None:
    clock = PinnedClock()
    store = MemoryStore(ttl_s=10, clock=clock)
    store.remember(["a"])
    clock.advance(9.9)
    assert store.seen(["a", "b"]) == {"a"}
    clock.advance(0.2)
    assert store.seen(["a"]) == set()


def test_a_mark_is_renewed() -> None:
    clock = PinnedClock()
    store = MemoryStore(ttl_s=10, clock=clock)
    store.remember(["a"])
    clock.advance(8)
    store.remember(["a"])
    clock.advance(8)
    assert store.seen(["a"]) == {"a"}


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    store = MemoryStore(max_ids=3)
    store.remember(["a", "b", "c"])
    store.remember(["a"])
    store.remember(["d"])
    assert store.seen([*"abcd"]) == {"a", "c", "d"}


class Broken(MemoryStore):
    def __init__(self, error: Exception, on: str) -> None:
        super().__init__()
        self._error, self._on = error, on

    def seen(self, ids):
        if self._on == "seen":
            raise self._error
        return super().seen(ids)

    def remember(self, ids):
        if self._on == "remember":
            raise self._error
        super().remember(ids)


def test_a_store_that_cannot_be_asked_stops_the_handler() -> None:
    effects = Effects()
    with pytest.raises(BrokerUnavailable):
        guard(Broken(BrokerUnavailable("away"), "seen"), "a", effects)
    assert effects.count == 0


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), StoreError("damaged")])
def test_a_mark_that_cannot_be_written_does_not_undo_success(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shinar.idempotency"):
        assert guard(Broken(error, "remember"), "the-id", Effects())
    assert "the-id was handled but could not be marked" in caplog.text


def test_open_store_by_url() -> None:
    store = open_store("memory://?ttl_s=5&max_ids=1")
    assert isinstance(store, Store)
    store.remember(["a"])
    store.remember(["b"])
    assert store.seen([*"ab"]) == {"b"}
    store.close()
    assert store.seen([*"ab"]) == set()


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("rediz://h", UnknownScheme, "did you mean redis"),
        ("kafka://h", UnknownScheme, "known: memory"),
        ("memory://?ttl=5", ConfigError, r"\?ttl=: memory:// has no such option; known: max_ids, ttl_s"),
        ("memory://?ttl_s=soon", ConfigError, "not a number"),
        ("sqlite:///nowhere/there/x.db", ConfigError, "no folder /nowhere/there"),
        ("sqlite:///x.db?lease_s=3", ConfigError, "no such option"),
        ("redis://h?ttl=3", ConfigError, "no such option"),
    ],
)
def test_a_wrong_url_says_what_to_do(url: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        open_store(url)
