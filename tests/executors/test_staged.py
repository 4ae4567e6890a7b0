# SPDX-License-Identifier: Apache-2.0
"""What is staged on tables that do not tell: known to the database first, and found there when its executor is gone."""

import sqlite3
from pathlib import Path

import pytest
import toy_format
from plain_format import PlainFormat
from toy_bench import Bench, Flaky, no_spark

from executors.outcome import Result
from executors.rescue import rescue_one, sweep
from lake.plan import Staged


@pytest.fixture
def plain(bench: Bench) -> Bench:
    """A bench whose table has no timeline."""
    bench.format = PlainFormat()
    return bench


class Killed(BaseException):
    """Not an error: the process ends here."""


def die() -> None:
    raise Killed


def swept(bench: Bench) -> int:
    return sweep(bench.table, format=bench.format, store=bench.store, spark=no_spark)


def staged(bench: Bench) -> list[Staged]:
    return [left.staged for left in bench.store.leftovers(bench.table)]


def strange(bench: Bench) -> set[str]:
    """Data files and directories that no commit made."""
    home = Path(bench.table.location)
    done = {m.get("instant") for m in toy_format.manifests(bench.table)}
    return {path.name for path in home.glob("dt=*/*") if path.is_dir() and path.name not in done}


def test_p2_what_is_staged_is_in_the_database_before_the_first_file_of_it_exists(plain: Bench, monkeypatch):
    def journal_last(writer, one):
        assert not strange(plain), "nothing is there yet"
        known.append(one)

    known: list[Staged] = []
    stage = plain.store.stage
    monkeypatch.setattr(plain.store, "stage", lambda claim, one: (journal_last(claim, one), stage(claim, one))[1])
    plan = plain.request()
    assert plain.run().result is Result.COMPLETED
    assert [one.paths for one in known] == [(f"dt=0/{known[0].token}/", f"dt=1/{known[0].token}/")]
    assert plain.store.plan(plan.plan_id).instants == (known[0].token,)
    assert staged(plain) == [], "it is the table's now"


def test_p2_nothing_is_staged_where_the_database_does_not_know_of_it(plain: Bench):
    plan = plain.request()
    store = Flaky(plain.store)
    store.down["stage"] = 1
    assert plain.run(store=store).result is Result.REQUEUED
    assert (strange(plain), plain.state(plan)) == (set(), "requested")


@pytest.mark.parametrize("where", ["rewrite", "rewritten", "commit"])
def test_p2_what_a_killed_executor_staged_is_withdrawn_by_the_next_attempt(plain: Bench, where: str):
    before, plan = plain.rows(), plain.request()
    plain.format.hooks[where] = die
    with pytest.raises(Killed):
        plain.run()
    assert len(strange(plain)) == 1
    assert staged(plain) == [], "its executor may live"
    plain.format.hooks.clear()
    plain.expire()
    taken = plain.store.expired("second")
    assert taken is not None
    assert len(taken.staged) == 1
    assert plain.run(taken).result is Result.COMPLETED
    assert (strange(plain), plain.commits(plan), plain.rows()) == (set(), 1, before)


def test_p2_what_a_killed_executor_of_a_cancelled_plan_staged_is_withdrawn_by_the_sweep(plain: Bench):
    before, plan = plain.rows(), plain.request()
    plain.format.hooks["rewritten"] = die
    with pytest.raises(Killed):
        plain.run()
    assert swept(plain) == 0, "its executor may live"
    assert len(strange(plain)) == 1
    plain.format.hooks.clear()
    plain.expire()
    plain.store.request_cancel(plan.plan_id, "ada")
    rescue_one("second", formats=lambda name: plain.format, store=plain.store, spark=no_spark, ask_again=(0.0,))
    assert plain.state(plan) == "cancelled"
    assert swept(plain) == 1
    assert (strange(plain), swept(plain), plain.rows()) == (set(), 0, before)


def test_p2_what_a_sleeper_writes_after_its_withdrawal_is_found_for_a_week(plain: Bench):
    plan = plain.request()
    claim = plain.claim()
    plain.store.request_cancel(plan.plan_id, "ada")
    with plain.format.writer(plain.table, no_spark) as sleeper:
        sleeper.journal = lambda one: plain.store.stage(claim, one)
        prepared = sleeper.prepare(plan, claim.epoch)
        plain.expire()
        rescue_one("second", formats=lambda name: plain.format, store=plain.store, spark=no_spark, ask_again=(0.0,))
        assert (plain.state(plan), swept(plain), strange(plain)) == ("cancelled", 1, set())
        for name in plan.partitions:
            (Path(plain.table.location) / name / prepared.instant).mkdir()
        sleeper.rewrite(prepared, lambda _: None)
    assert (swept(plain), strange(plain)) == (1, set())
    assert len(staged(plain)) == 1, "it may write again"
    week = 7 * 24 * 3_600_000
    with sqlite3.connect(plain.home / "lakefold.db") as connection:
        connection.execute(f"UPDATE staged SET staged_at_ms = staged_at_ms - {week}")
    connection.close()
    assert (swept(plain), staged(plain)) == (0, [])


def test_p2_the_files_of_a_commit_are_never_taken_for_left_over(plain: Bench):
    plan = plain.request()
    plain.format.hooks["landed"] = die
    with pytest.raises(Killed):
        plain.run()
    plain.format.hooks.clear()
    before = plain.rows()
    plain.expire()
    rescue_one("second", formats=lambda name: plain.format, store=plain.store, spark=no_spark, ask_again=(0.0,))
    assert (plain.state(plan), swept(plain), plain.rows()) == ("completed", 0, before)
    assert staged(plain) == []
