# SPDX-License-Identifier: Apache-2.0
"""Ticks, lanes, leadership and log lines by themselves."""

import json
import logging
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from waiting import wait_for

from service.control.leadership import Leadership
from service.server.daemon.keyed_pool import KeyedPool
from service.server.daemon.loops import LoopRunner
from service.server.observability.logs import JsonFormatter, TextFormatter, configure_logging

TICK = timedelta(milliseconds=30)


@pytest.fixture
def failures():
    return []


@pytest.fixture
def ticks(failures):
    ticks = LoopRunner(lambda name, error: failures.append((name, error)))
    yield ticks
    ticks.stop()


def test_a_loop_that_hangs_does_not_delay_the_others(ticks):
    release, calls = threading.Event(), []
    ticks.add_loop(TICK, "hanging", release.wait)
    ticks.add_loop(TICK, "quick", lambda: calls.append(1))
    ticks.start()
    wait_for(lambda: len(calls) >= 3, "three ticks")
    release.set()


def test_a_loop_that_takes_longer_than_its_interval_is_never_entered_twice(ticks):
    inside, most = [], []

    def slow():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.1)
        inside.pop()

    ticks.add_loop(TICK, "slow", slow)
    ticks.start()
    wait_for(lambda: len(most) >= 3, "three ticks")
    assert set(most) == {1}


def test_an_exception_ends_one_tick_is_reported_and_the_next_tick_runs(ticks, failures):
    def broken():
        raise OSError("disk on fire")

    ticks.add_loop(TICK, "broken", broken)
    ticks.start()
    wait_for(lambda: len(failures) >= 2, "two failures")
    assert {(name, str(error)) for name, error in failures} == {("broken", "disk on fire")}


def test_stop_waits_for_the_tick_under_way_and_lets_none_follow(ticks):
    begun, ended = threading.Event(), []

    def slow():
        begun.set()
        time.sleep(0.2)
        ended.append(1)

    ticks.add_loop(TICK, "slow", slow)
    ticks.start()
    assert begun.wait(60)
    ticks.stop()
    assert len(ended) == 1
    time.sleep(0.1)
    assert len(ended) == 1


def test_a_table_that_hangs_blocks_one_thread_and_other_tables_continue():
    lanes, release, done = KeyedPool("scan", 2), threading.Event(), []
    try:
        assert lanes.submit("hangs", release.wait)
        assert not lanes.submit("hangs", release.wait)
        for name in ("a", "b", "c"):
            assert lanes.submit(name, lambda name=name: done.append(name))
        wait_for(lambda: done == ["a", "b", "c"], "each lane's work")
        assert not lanes.wait(0.01)
        release.set()
        assert lanes.wait(60)
        assert lanes.submit("hangs", lambda: None)
    finally:
        release.set()
        lanes.stop()


def test_work_that_raises_frees_its_key(caplog):
    lanes = KeyedPool("scan", 1)
    try:
        lanes.submit("a", lambda: 1 / 0)
        assert lanes.wait(60)
        assert lanes.submit("a", lambda: None)
    finally:
        lanes.stop()
    assert "work for a ended in an unexpected error" in caplog.text


class Rows:
    """Leader rows in memory with the store's semantics; ``down`` makes every call fail, ``delay`` is called by each."""

    def __init__(self):
        self.rows, self.down, self.delay = {}, False, lambda: None

    def acquire_leader(self, role, holder, ttl):
        if self.down:
            raise ConnectionError("no database")
        self.delay()
        owner, until = self.rows.get(role, (holder, 0.0))
        if owner != holder and until > time.monotonic():
            return False
        self.rows[role] = (holder, time.monotonic() + ttl.total_seconds())
        return True

    def release_leader(self, role, holder):
        if self.rows.get(role, ("", 0))[0] == holder:
            del self.rows[role]


def test_a_second_process_leads_only_after_the_first_gave_up_or_expired():
    rows, ttl = Rows(), timedelta(seconds=30)
    first, second = Leadership(rows, "a", ["scan"], ttl), Leadership(rows, "b", ["scan"], ttl)
    first.renew()
    second.renew()
    assert (first.is_leader("scan"), second.is_leader("scan")) == (True, False)
    first.release()
    second.renew()
    assert (first.is_leader("scan"), second.is_leader("scan")) == (False, True)


def test_a_leader_cut_off_from_the_database_stops_leading_by_itself(monkeypatch):
    rows, clock = Rows(), SimpleNamespace(now=0.0)
    monkeypatch.setattr("lake.stopwatch.time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now))
    leadership = Leadership(rows, "a", ["scan"], timedelta(seconds=30))
    rows.delay = lambda: setattr(clock, "now", 5.0)
    leadership.renew()
    assert leadership.is_leader("scan")
    rows.down = True
    clock.now = 29.0
    with pytest.raises(ConnectionError):
        leadership.renew()
    assert leadership.is_leader("scan"), "the row is still ours for the others"
    clock.now = 30.0
    assert not leadership.is_leader("scan"), "counted from the request, not from its answer"
    rows.down = False
    leadership.renew()
    assert leadership.is_leader("scan")


def test_a_request_for_a_role_with_a_lost_answer_is_revoked_at_the_end():
    rows = Rows()
    leadership = Leadership(rows, "a", ["scan"], timedelta(seconds=30))

    def lose_the_answer():
        rows.rows["scan"] = ("a", time.monotonic() + 30)
        raise ConnectionError("no answer")

    rows.delay = lose_the_answer
    with pytest.raises(ConnectionError):
        leadership.renew()
    assert not leadership.is_leader("scan")
    leadership.release()
    assert rows.rows == {}


def test_gaining_and_losing_the_lead_is_one_log_line_each(caplog):
    caplog.set_level(logging.INFO, "service.control.leadership")
    leadership = Leadership(Rows(), "a", ["scan"], timedelta(seconds=30))
    for _ in range(3):
        leadership.renew()
    leadership.release()
    assert caplog.messages == ["now the leader of scan", "no longer the leader of scan"]


def record(message, *, exc_info=None, **extra):
    made = logging.LogRecord("service.server.daemon.process", logging.INFO, __file__, 1, message, (), exc_info)
    vars(made).update(extra)
    return made


def test_a_json_log_line_holds_the_message_its_origin_and_the_extra_facts():
    entry = json.loads(JsonFormatter().format(record("plan completed", plan="0198", bytes=42)))
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "service.server.daemon.process",
        "message": "plan completed",
        "plan": "0198",
        "bytes": 42,
    }


def test_an_exception_stays_inside_its_json_line():
    try:
        raise ValueError("bad")
    except ValueError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: bad" in json.loads(line)["exception"]


def test_a_name_with_a_line_break_splits_no_log_line():
    line = TextFormatter().format(record("table a\nb\r\nc: scan failed"))
    assert line.endswith("table a\\nb\\nc: scan failed")
    assert len(line.splitlines()) == 1


def test_a_text_log_line_begins_with_its_time_and_level():
    stamp, level, logger, message = TextFormatter().format(record("hello")).split(" ", 3)
    assert stamp.endswith("Z")
    assert (level, logger, message) == ("INFO", "service.server.daemon.process:", "hello")


@pytest.mark.parametrize(("level", "style"), [("loud", "text"), ("info", "xml")])
def test_an_unknown_level_or_style_is_refused_with_the_known_ones(level, style):
    with pytest.raises(ValueError, match=r"unknown; use"):
        configure_logging(level, style)
