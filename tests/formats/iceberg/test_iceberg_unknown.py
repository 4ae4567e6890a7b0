# SPDX-License-Identifier: Apache-2.0
"""A connection that breaks during the commit: its result is unknown until the table has been asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from cutting_proxy import CuttingProxy, Lost, proxy_to
from iceberg_case import IcebergCase
from iceberg_readers import rows_of_all_readers
from sqlalchemy import make_url

from lake.errors import CommitUnknown, Transient
from lake.formats.iceberg.jvm import exact_commit, expiry

pytestmark = pytest.mark.spark

#: what a client of each server sends when it commits
MARKERS = {"postgresql": b"UPDATE iceberg_tables", "rest": b"assert-ref-snapshot-id"}


@dataclass(frozen=True)
class Bench:
    """A case whose client reaches its server through ``proxy``."""

    case: IcebergCase
    proxy: CuttingProxy
    marker: bytes


@pytest.fixture(params=["postgresql", "rest"])
def bench(spark: Any, request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "rest":
        parts = urlsplit(request.getfixturevalue("rest_server"))
        with proxy_to(str(parts.hostname), int(parts.port or 0)) as proxy:
            case = IcebergCase(session=spark, kind="rest", server=f"http://127.0.0.1:{proxy.port}")
            yield Bench(case, proxy, MARKERS["rest"])
        return
    url = make_url(request.getfixturevalue("catalog_database"))
    with proxy_to(str(url.host), int(url.port or 0)) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        yield Bench(IcebergCase(session=spark, kind="postgresql", server=through), proxy, MARKERS["postgresql"])


@pytest.fixture
def breaking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Breaks the connection during the next commit, once."""
    turns: list[tuple[Lost, bool]] = []

    def at(name: str) -> None:
        if name == "in_commit" and turns:
            lost, stay_down = turns.pop()
            bench.proxy.lose(lost, bench.marker, stay_down=stay_down)

    monkeypatch.setattr(exact_commit, "failpoint", at)
    return lambda lost, stay_down: turns.append((lost, stay_down))


@pytest.mark.parametrize("lost", list(Lost))
def test_a_commit_whose_connection_breaks_is_unknown_until_it_is_looked_up(
    bench: Bench, tmp_path: Path, breaking: Callable[..., None], lost: Lost
):
    case = bench.case
    table = case.create(tmp_path / "lake" / "t", name="t")
    rows = rows_of_all_readers(case, table)
    breaking(lost, True)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        with pytest.raises(CommitUnknown):
            one.writer.commit(rewrite)
        assert bench.proxy.cuts == 1
        bench.proxy.restore()
        found = case.format.find_commit(table, "p")
        if lost is Lost.ANSWER:
            assert found is not None, "the server had made the commit"
            assert set(found.outputs) == set(rewrite.outputs)
            assert one.discarded(None) == 0, "a commit that was made is not withdrawn"
        else:
            assert found is None
            assert one.discarded(None) == 1
    assert rows_of_all_readers(case, table) == rows
    assert case.commits(table) == ([("p", 1)] if lost is Lost.ANSWER else [])
    verified = case.format.verify(table, (), rows=True)
    assert (verified.missing, verified.unowned, verified.rows) == ((), (), verified.rows_expected)


@pytest.mark.parametrize("lost", list(Lost))
@pytest.mark.parametrize("bench", ["postgresql"], indirect=True)
def test_a_commit_that_iceberg_repeats_on_a_new_connection_is_made_once(
    bench: Bench, tmp_path: Path, breaking: Callable[..., None], lost: Lost
):
    """Its JDBC client repeats a statement whose connection broke; a repeated commit that was made is then refused."""
    case = bench.case
    table = case.create(tmp_path / "lake" / "t", name="t")
    rows = rows_of_all_readers(case, table)
    breaking(lost, False)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.writer.commit(one.rewritten())
    assert bench.proxy.cuts == 1
    assert rows_of_all_readers(case, table) == rows
    assert case.commits(table) == [("p", 1)]
    found = case.format.find_commit(table, "p")
    assert found is not None
    assert found.instant == commit.instant


@pytest.mark.parametrize("lost", list(Lost))
def test_an_expiry_whose_connection_breaks_deletes_the_replaced_files_at_last(
    bench: Bench, tmp_path: Path, lost: Lost, monkeypatch: pytest.MonkeyPatch
):
    """Iceberg's JDBC client repeats the statement at once; a REST server is asked again in the next round."""
    case, checked = bench.case, expiry._kept_for_others
    table = case.create(tmp_path / "lake" / "t", name="t")
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.committed()
    rows = rows_of_all_readers(case, table)

    def break_off(*arguments: Any) -> set[int]:
        if not bench.proxy.cuts:
            bench.proxy.lose(lost, bench.marker, stay_down=case.kind == "rest")
        return checked(*arguments)

    monkeypatch.setattr(expiry, "_kept_for_others", break_off)
    with case.format.writer(table, case.spark, case.engines) as writer:
        if case.kind == "rest":
            with pytest.raises(Transient, match="catalog"):
                writer.delete(commit.superseded)
            bench.proxy.restore()
        assert writer.delete(commit.superseded).retained == {}
    assert bench.proxy.cuts == 1
    (newest,) = case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots").collect()
    assert str(newest["snapshot_id"]) == commit.instant
    assert set(case.stored(table)) == {output.path for output in commit.outputs}
    assert rows_of_all_readers(case, table) == rows


def test_a_read_whose_connection_breaks_is_repeated_later(bench: Bench, tmp_path: Path):
    table = bench.case.create(tmp_path / "lake" / "t", name="t")
    bench.proxy.lose(Lost.ANSWER, b"GET /v1/" if bench.marker == MARKERS["rest"] else b"metadata_location")
    with pytest.raises(Transient, match="catalog"):
        bench.case.format.snapshot(table)
    assert len(bench.case.format.snapshot(table).slices) == 6
