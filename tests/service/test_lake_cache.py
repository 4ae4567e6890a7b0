# SPDX-License-Identifier: Apache-2.0
"""One reading of all tables for metrics, status and page: no caller waits for it, and none gets one from an outage."""

import time
from types import SimpleNamespace

import pytest

from service.control import lake_cache
from service.control.lake_cache import LakeCache
from service.control.store import DatabaseUnreachable


class Reading:
    """Stands for the database: a number for each reading, an error while ``down``."""

    def __init__(self, monkeypatch):
        self.times, self.down = 0, False
        monkeypatch.setattr(lake_cache, "read_lake_state", self._read)

    def _read(self, store, known):
        if self.down:
            raise DatabaseUnreachable("no answer")
        self.times += 1
        return self.times


@pytest.fixture
def reading(monkeypatch):
    return Reading(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [1000.0]
    monkeypatch.setattr(lake_cache, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def until(condition):
    deadline = time.perf_counter() + 10
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.005)


def test_a_fresh_reading_is_shared(reading, clock):
    shared = LakeCache(None)
    assert [shared.get(), shared.get(), shared.refresh(), shared.get()] == [1, 1, 2, 2]


@pytest.mark.slow
def test_an_older_reading_is_returned_at_once_and_renewed_in_the_background(reading, clock):
    shared = LakeCache(None)
    shared.get()
    clock[0] += 5
    assert shared.get() == 1
    until(lambda: reading.times == 2)
    until(lambda: shared.get() == 2)


def test_a_fresh_reading_is_at_most_a_second_old(reading, clock):
    shared = LakeCache(None)
    shared.get()
    clock[0] += 0.9
    assert shared.get(fresh=True) == 1
    clock[0] += 0.2
    assert [shared.get(fresh=True), shared.get(fresh=True)] == [2, 2]


def test_an_old_reading_is_never_returned(reading, clock):
    shared = LakeCache(None)
    shared.get()
    clock[0] += 31
    assert shared.get() == 2


def test_an_outage_is_reported_to_the_next_caller_and_ends_by_itself(reading, clock):
    shared = LakeCache(None)
    shared.get()
    reading.down = True
    clock[0] += 5
    shared.get()

    def told():
        try:
            shared.get()
        except DatabaseUnreachable:
            return True
        return False

    until(told)
    reading.down = False
    assert shared.get() == 2


def test_no_caller_gets_a_reading_from_before_a_change_nor_one_begun_before_it(reading, clock, monkeypatch):
    shared = LakeCache(None)
    assert shared.get() == 1
    shared.invalidate()
    assert [shared.get(), shared.get()] == [2, 2]

    real = lake_cache.read_lake_state

    def changed_meanwhile(store, known):
        found = real(store, known)
        if found == 3:
            shared.invalidate()
        return found

    monkeypatch.setattr(lake_cache, "read_lake_state", changed_meanwhile)
    assert shared.refresh() == 3
    assert [shared.get(), shared.get()] == [4, 4]
