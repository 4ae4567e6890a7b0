# SPDX-License-Identifier: Apache-2.0
"""Tables by source and by a person's word for them, on directories as Hudi lays them out."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from daemon_toys import known
from support import needs_server
from toys.timeline import ToyFormat

import lake.formats
from lake.model import CatalogRef, TableRef
from lake.storage.locations import location_identity
from service.control import serializers
from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.config.table_settings import ConfiguredTable
from service.control.lake_cache import LakeState, read_lake_state
from service.control.store import StoreError, TableScope
from service.problems import ExitCode, ProblemError
from service.server.daemon.scheduler import Scheduler
from service.server.observability.metrics import Metrics
from service.server.observability.stored_metrics import StoredFigures
from service.server.web.overview import notices


def table(base: Path, name: str = "t") -> Path:
    """A directory that is a Hudi table without any commit."""
    (base / ".hoodie").mkdir(parents=True)
    (base / ".hoodie" / "hoodie.properties").write_text(f"hoodie.table.name={name}\nhoodie.table.version=9\n")
    return base


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """Builds a catalog from the text of a configuration file in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEFOLD_CONFIG", raising=False)

    def build(text: str, **arguments: Any) -> Catalog:
        file = tmp_path / "lakefold.toml"
        file.write_text(text)
        return Catalog(load_config(file), **arguments)

    return build


@contextmanager
def without_rights() -> Iterator[None]:
    """Act as a user who may read only what all may read: root may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def names(catalog: Catalog) -> dict[str, str]:
    """Name → last part of the location."""
    return {ref.name: ref.location.rpartition("/")[2] for ref in catalog.table_refs()}


def test_a_directory_is_searched_and_its_tables_are_called_by_their_path_below_it(catalog, tmp_path):
    table(tmp_path / "lake/sales/orders", "o")
    table(tmp_path / "lake/trips", "x")
    (tmp_path / "lake/nothing").mkdir()
    found = catalog('[[sources]]\npath = "lake"\n')
    assert names(found) == {"sales.orders": "orders", "trips": "trips"}
    assert found.problems == []


def test_a_source_that_is_a_table_keeps_the_tables_own_name_or_gets_the_one_given(catalog, tmp_path):
    base = table(tmp_path / "lake/dir", "own")
    assert names(catalog(f'[[sources]]\npath = "{base}"\n')) == {"own": "dir"}
    assert names(catalog(f'[[sources]]\npath = "{base}"\nname = "a.b"\n')) == {"a.b": "dir"}
    assert names(catalog(f'[[sources]]\npath = "{base}"\nprefix = "p."\n')) == {"p.own": "dir"}


def test_a_path_source_finds_tables_of_formats_that_metastores_list_as_well(catalog, tmp_path):
    class ListedToo(ToyFormat):
        is_metastore_only = False

        def discover(self, location: str) -> Iterator[TableRef]:
            yield from super().discover(location) if location.endswith("/t") else ()

        def discover_in_metastore(self, uri: str, databases: str, tables: str) -> Iterator[TableRef]:
            yield from ()

    (tmp_path / "lake" / "t").mkdir(parents=True)
    with known(ListedToo()):
        found = catalog('[[sources]]\npath = "lake/t"\n').table_refs()
    assert [(ref.name, ref.format) for ref in found] == [("t", "toy")]


def test_a_pattern_names_tables_by_their_path_below_its_fixed_part(catalog, tmp_path):
    for team in ("red", "blue"):
        table(tmp_path / "lake" / team / "raw/t")
        table(tmp_path / "lake" / team / "work/t")
    found = catalog('[[sources]]\npath = "lake/*/raw"\nprefix = "raw."\n')
    assert sorted(names(found)) == ["raw.blue.raw.t", "raw.red.raw.t"]


def test_a_copy_of_a_table_elsewhere_does_not_take_its_name(catalog, tmp_path):
    table(tmp_path / "a/t")
    table(tmp_path / "b/t")
    found = catalog('[[sources]]\npath = "a"\n[[sources]]\npath = "b"\n')
    assert [ref.location for ref in found.table_refs()] == [str(tmp_path / "a/t")]
    (problem,) = found.problems
    assert str(tmp_path / "b/t") in problem
    assert "give source #2 a prefix or a name" in problem


def test_overlapping_sources_serve_a_table_once_under_its_first_name(catalog, tmp_path):
    table(tmp_path / "lake/t")
    found = catalog('[[sources]]\npath = "lake/t"\nname = "first"\n[[sources]]\npath = "lake"\n')
    assert names(found) == {"first": "t"}
    assert found.problems == []


def test_a_table_with_two_names_is_served_once_under_the_name_of_its_real_location(catalog, tmp_path):
    table(tmp_path / "lake/trips")
    (tmp_path / "lake/alias").symlink_to(tmp_path / "lake/trips")
    (tmp_path / "other").symlink_to(tmp_path / "lake")
    table(tmp_path / "elsewhere/orders")
    (tmp_path / "lake/orders").symlink_to(tmp_path / "elsewhere/orders")
    sources = '[[sources]]\npath = "other"\nprefix = "o."\n[[sources]]\npath = "lake"\n'
    found = catalog(sources)
    assert names(found) == {"trips": "trips", "o.orders": "orders"}
    lake = tmp_path / "lake"
    assert f"{lake}/alias ('alias') is left out: it is the same directory as {lake}/trips, which is called 'trips'" in (
        found.problems
    )
    assert len(found.problems) == 4
    for path in ("lake/trips", "lake/alias", "other/trips", "other/alias"):
        assert found.find(path).name == "trips", path
    remembered = catalog(
        sources, registered=lambda: [TableRef(name="o.orders", format="hudi", location=f"{tmp_path}/other/orders")]
    )
    assert remembered.find(str(tmp_path / "elsewhere/orders")).name == "o.orders"


def test_a_bind_mount_is_the_same_location_as_its_source(tmp_path):
    for name in ("trips", "mounted"):
        (tmp_path / name).mkdir()
    places = (
        "import sys\nfrom lake.storage.locations import location_identity\n"
        "print(location_identity(sys.argv[1]) == location_identity(sys.argv[2]))"
    )
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$1" "$2"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    command += [str(tmp_path / "trips"), str(tmp_path / "mounted"), sys.executable, places]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        needs_server(f"the kernel allows no mounts here: {found.stderr}")
    assert found.stdout.strip() == "True"
    assert location_identity(str(tmp_path / "trips")) != location_identity(str(tmp_path / "mounted"))


def test_a_source_that_cannot_be_resolved_does_not_stop_the_others(catalog, tmp_path):
    table(tmp_path / "lake/t")
    found = catalog(
        '[[sources]]\npath = "gone"\n[[sources]]\npath = "lake"\n[[sources]]\npath = "no/*"\n'
        '[[sources]]\npath = "lake"\nname = "x"\n'
    )
    assert names(found) == {"t": "t"}
    gone, pattern, named = found.problems
    assert gone.startswith("source #1 (gone): ")
    assert "no directory matches" in pattern
    assert "name = 'x' is for one table" in named


def test_a_directory_that_cannot_be_searched_hides_no_table_beside_it_and_each_one_is_named(catalog, tmp_path):
    for name in ("lake/a", "lake/z", "more/one/t", "more/three/t"):
        table(tmp_path / name)
    for name in ("lake/half", "lake/deep/half", "more/two"):
        (tmp_path / name / ".hoodie").mkdir(parents=True)
    found = catalog('[[sources]]\npath = "lake"\n[[sources]]\npath = "more/*"\n')
    assert sorted(ref.name for ref in found.table_refs()) == ["a", "one.t", "three.t", "z"]
    for number, (source, half) in enumerate(
        [("#1 (lake)", "lake/deep/half"), ("#1 (lake)", "lake/half"), ("#2 (more/*)", "more/two")]
    ):
        assert found.problems[number].startswith(f"source {source}: {tmp_path}/{half} has a directory .hoodie and no ")
    assert len(found.problems) == 3


def test_a_directory_without_permission_is_named_and_lost_found_is_never_searched(catalog, tmp_path):
    for parent in (tmp_path, *tmp_path.parents):
        if parent.name.startswith(("pytest-", "popen-")) or parent == tmp_path:
            parent.chmod(0o755)
    table(tmp_path / "lake/a")
    for name in ("lost+found", "private"):
        (tmp_path / "lake" / name).mkdir(mode=0)
    found = catalog('[[sources]]\npath = "lake"\n')
    with without_rights():
        assert names(found) == {"a": "a"}
    (problem,) = found.problems
    assert problem.startswith(f"source #1 (lake): {tmp_path}/lake/private/")
    assert "permission denied for" in problem


def test_every_process_knows_the_directories_that_the_leader_could_not_search(
    catalog, tmp_path, store, run, monkeypatch
):
    monkeypatch.setenv("LAKEFOLD_DATABASE__URL", store.url)
    table(tmp_path / "lake/a")
    half = tmp_path / "lake/half/.hoodie"
    half.mkdir(parents=True)
    found = catalog('[[sources]]\npath = "lake"\n')
    metrics = Metrics("scheduler")
    scheduler = Scheduler(found.config, store, found, metrics, is_leader=lambda: True, actor="scheduler")
    scheduler.discover()
    assert [state.name for state in store.table_states()] == ["a"]
    (first,) = store.source_problems()
    assert first.problem.startswith(f"source #1 (lake): {tmp_path}/lake/half has a directory .hoodie")
    scheduler.discover()
    assert store.source_problems() == [first], "a problem keeps the time at which it was first met"
    code, out, _ = run("status")
    assert (code, first.problem in out, "docs/runbook.md#sourceunreadable" in out) == (0, True, True)
    code, out, error = run("config", "check")
    assert code == ExitCode.PARTIAL
    assert out.splitlines()[0].endswith("and 1 problem with sources")
    assert first.problem in error
    shown = read_lake_state(store)
    (told,) = [notice for notice in notices(shown, datetime.now(UTC)) if notice.subject.startswith("Not all tables")]
    assert first.problem in told.text
    assert gauge(shown) == 1
    some = TableScope(("other.*",))
    assert (shown.limited_to(some).source_problems, store.limited_to(some).source_problems()) == ((), [])
    half.rmdir()
    scheduler.discover()
    assert serializers.status(read_lake_state(store))["source_problems"] == []
    assert gauge(read_lake_state(store)) == 0


def test_a_table_that_a_scan_misses_is_searched_for_at_once(catalog, tmp_path, store):
    table(tmp_path / "lake/before")
    text = f'[database]\nurl = "{store.url}"\n[defaults]\nscan_interval = "1ms"\n[[sources]]\npath = "lake"\n'
    found = catalog(text)
    scheduler = Scheduler(found.config, store, found, Metrics("scheduler"), is_leader=lambda: True, actor="scheduler")
    searched = []

    def tables() -> list[ConfiguredTable]:
        searched.append("at all")
        return Catalog.tables(found)

    found.tables = tables
    for _ in range(3):
        scheduler.tick()
        scheduler.wait()
        time.sleep(0.002)
    assert len(searched) == 1
    (tmp_path / "lake/before").rename(tmp_path / "lake/after")
    for _ in range(3):
        scheduler.tick()
        scheduler.wait()
        time.sleep(0.002)
    assert (len(searched), store.table_state("after").name) == (2, "after")


def test_an_unavailable_source_or_database_is_tried_again_within_seconds(catalog, tmp_path, store, monkeypatch):
    table(tmp_path / "lake/a")
    half = tmp_path / "lake/half/.hoodie"
    half.mkdir(parents=True)
    found = catalog(f'[database]\nurl = "{store.url}"\n[[sources]]\npath = "lake"\n')
    now, searched = [1000.0], list[float]()
    monkeypatch.setattr("service.server.daemon.scheduler.time.monotonic", lambda: now[0])

    def tables() -> list[ConfiguredTable]:
        searched.append(now[0] - 1000)
        if len(searched) == 1:
            raise StoreError("the database is away")
        return Catalog.tables(found)

    found.tables = tables
    scheduler = Scheduler(found.config, store, found, Metrics("scheduler"), is_leader=lambda: True, actor="scheduler")
    for second in range(400):
        now[0] = 1000.0 + second
        if second == 20:
            half.rmdir()
        with suppress(StoreError):
            scheduler.tick()
    scheduler.wait()
    assert searched == [0, 1, 3, 7, 15, 31, 331]


def gauge(lake: LakeState) -> float:
    """``lakefold_source_problems`` of a reading."""
    figures = StoredFigures()
    figures.publish(lake)
    (value,) = [one.samples[0].value for one in figures.collect() if one.name == "lakefold_source_problems"]
    return value


def test_the_last_line_of_a_long_list_of_problems_counts_the_omitted_ones(store):
    store.record_source_problems([f"source #1 (lake): {number}" for number in range(250)])
    lines = [one.problem for one in store.source_problems()]
    assert (len(lines), lines[-1].partition(" ")[0]) == (101, "150")


def test_a_table_that_spark_cannot_describe_hides_no_table_beside_it(catalog):
    class Broken(Session):
        def collect(self) -> list[Any]:
            if self.text.endswith("`plain`"):
                raise RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] no such file\nmore of it")
            return super().collect()

    found = catalog('[[sources]]\ncatalog = "spark_catalog"\ndatabase = "sales"\n', spark=Broken)  # type: ignore[arg-type]
    assert [ref.name for ref in found.table_refs()] == ["sales.orders"]
    (problem,) = found.problems
    assert problem.endswith("`spark_catalog`.`sales`.`plain`: [TABLE_OR_VIEW_NOT_FOUND] no such file")


def test_a_table_is_found_by_name_by_the_unique_end_of_it_and_by_path(catalog, tmp_path, monkeypatch):
    for name in ("sales/orders", "sales/items", "crm/items"):
        table(tmp_path / "lake" / name)
    found = catalog('[[sources]]\npath = "lake"\n[[tables]]\nmatch = "sales.*"\nmode = "compact"\n')
    orders = found.find("sales.orders")
    assert (orders.name, orders.mode) == ("sales.orders", "compact")
    assert found.find("orders") == orders
    assert found.find("lake/sales/orders") == orders
    assert found.find(f"file://{tmp_path}/lake/sales/orders/") == orders
    with pytest.raises(ProblemError, match=r"'items' is the end of 2 names: crm\.items, sales\.items") as caught:
        found.find("items")
    assert caught.value.problem.code is ExitCode.USAGE
    with pytest.raises(ProblemError, match=r"no table 'sales\.order'; did you mean 'sales\.orders'\?") as caught:
        found.find("sales.order")
    assert caught.value.problem.code is ExitCode.NOT_FOUND


def test_a_path_outside_all_sources_is_served_under_the_tables_own_name(catalog, tmp_path):
    table(tmp_path / "elsewhere/dir", "own")
    found = catalog("")
    assert found.find("./elsewhere/dir").name == "own"
    with pytest.raises(ProblemError, match="no such directory: "):
        found.find("./nowhere")
    with pytest.raises(ProblemError, match="is not a table of a known format"):
        found.find("./elsewhere")
    with pytest.raises(ProblemError, match=r"\[\[sources\]\] is empty"):
        found.find("orders")


def test_a_table_the_store_remembers_is_found_without_searching(catalog, tmp_path):
    base = table(tmp_path / "lake/t")
    known = [
        TableRef(name="t", format="hudi", location=str(base)),
        TableRef(name="u", format="hudi", location="/old/u"),
    ]
    found = catalog('[[sources]]\npath = "lake"\n', registered=lambda: known)
    found.table_refs = lambda: pytest.fail("searched")  # type: ignore[method-assign]
    assert found.find("t").ref.location == str(base)
    del found.table_refs
    with pytest.raises(ProblemError, match="no table 'u'"):  # no source covers it any more
        found.find("u")


class Session:
    """What a catalog database looks like through SQL."""

    def sql(self, text: str) -> "Session":
        self.text = text
        return self

    def collect(self) -> list[Any]:
        if self.text.startswith("SHOW TABLES"):
            assert self.text == "SHOW TABLES IN `spark_catalog`.`sales`"
            return [{"tableName": name, "isTemporary": name == "view"} for name in ("orders", "plain", "view")]
        if "orders" in self.text:
            return [("Provider", "hudi", None), ("Location", "file:/lake/orders", None)]
        return [("Provider", "parquet", None), ("Location", "file:/lake/plain", None)]


def test_a_catalog_database_is_resolved_by_a_session_and_from_memory_without_one(catalog):
    text = '[[sources]]\ncatalog = "spark_catalog"\ndatabase = "sales"\n'
    found = catalog(text, spark=Session)  # type: ignore[arg-type]
    (ref,) = found.table_refs()
    assert (ref.name, ref.location) == ("sales.orders", "/lake/orders")
    assert ref.catalog == CatalogRef(kind="spark", name="spark_catalog", table="sales.orders")
    remembered = catalog(text, registered=lambda: [ref])
    assert remembered.table_refs() == [ref]
    assert remembered.find("orders").ref == ref


def test_an_iceberg_catalog_is_searched_by_its_settings_and_patterns(catalog, tmp_path, request):
    from iceberg_tables import jdbc_settings, owner_catalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    owner = owner_catalog(tmp_path)
    for namespace in ("sales", "raw"):
        owner.create_namespace(namespace)
        owner.create_table(f"{namespace}.orders", Schema(NestedField(1, "id", LongType())))
    owner.engine.dispose()
    lake.formats.configure(jdbc_settings(tmp_path))
    request.addfinalizer(lambda: lake.formats.configure({}))
    found = catalog('[[sources]]\ncatalog = "prod"\ndatabase = "s*"\nprefix = "lake."\n')
    assert names(found) == {"lake.sales.orders": "orders"}
    (ref,) = found.table_refs()
    assert found.covers(ref)
    assert not catalog('[[sources]]\ncatalog = "prod"\ntable = "x*"\n').covers(ref)


def test_a_catalog_without_settings_is_reported_with_lines_to_paste(catalog):
    found = catalog('[[sources]]\ncatalog = "prod"\n')
    assert names(found) == {}
    (problem,) = found.problems
    assert '"spark.sql.catalog.prod"' in problem


def test_the_first_source_that_lists_a_table_of_a_metastore_names_it(catalog):
    """A name that only a later source gives, or a former prefix gave, is a former name."""
    uri = "thrift://meta:9083"
    both = (
        f'[[sources]]\nmetastore = "{uri}"\ndatabase = "sales"\nprefix = "a."\n'
        f'[[sources]]\nmetastore = "{uri}"\nprefix = "b."\n'
    )

    def known(name: str, table: str) -> TableRef:
        found = CatalogRef(kind="metastore", name=uri, table=table)
        return TableRef(name=name, format="hive", location=f"/lake/{table}", catalog=found)

    sources = catalog(both)
    names = ("a.sales.t", "b.sales.t", "c.sales.t", "b.crm.t", "a.crm.t")
    refs = {name: known(name, name.partition(".")[2]) for name in names}
    assert [name for name in names if sources.covers(refs[name])] == ["a.sales.t", "b.crm.t"]
    assert [name for name in names if sources.is_former_name(refs[name])] == ["b.sales.t", "c.sales.t", "a.crm.t"]
    assert not sources.is_former_name(TableRef(name="t", format="hudi", location="/lake/t"))
