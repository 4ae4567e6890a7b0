# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables remove-orphans``: what it lists, deletes and refuses."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import sqlite_at
from iceberg_tables import append, jdbc_settings, owner_catalog, rows
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from toys.timeline_tables import create

import lake.formats
from lake.capabilities import with_identity
from lake.formats.iceberg import FORMAT
from lake.model import FileSlice, TableRef
from lake.plan import (
    Claim,
    ClusteringGroup,
    Commit,
    OutputFile,
    PartitionFigures,
    Plan,
    PlanKind,
    RewriteOptions,
    StagedWork,
    SupersededVersion,
)
from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.store import Store
from service.control.wiring import open_store

pytestmark = pytest.mark.usefixtures("clean_environment")

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", LongType()), NestedField(3, "dt", StringType())
)
CATALOG = "of_orphans"
Run = Callable[..., tuple[int, str, str]]


def make_old(*paths: Path, days: float = 4) -> None:
    at = time.time() - days * 86_400
    for path in paths:
        os.utime(path, (at, at))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog with one table of four small files, a configuration that names it, and an empty database."""
    owner = owner_catalog(tmp_path)
    owner.create_namespace("sales")
    append(owner.create_table("sales.orders", SCHEMA), *(rows(low, low + 50) for low in range(0, 200, 50)))
    pasted = "".join(f'"{key}" = "{value}"\n' for key, value in jdbc_settings(tmp_path).items())
    (tmp_path / "lakefold.toml").write_text(
        f'[database]\nurl = "{sqlite_at(tmp_path)}"\n[spark]\n{pasted}'
        '[[sources]]\ncatalog = "prod"\n[[tables]]\nmatch = "sales.*"\nmode = "compact"\nquiet_period = "0s"\n'
    )
    with_store(tmp_path, lambda store: store.upgrade())
    yield owner
    owner.engine.dispose()
    lake.formats.configure({})


def with_store(home: Path, use: Callable[[Store], Any]) -> Any:
    store = open_store(load_config(home / "lakefold.toml"))
    try:
        return use(store)
    finally:
        store.close()


def served_table(home: Path) -> TableRef:
    config = load_config(home / "lakefold.toml")
    lake.formats.configure(config.spark)
    (found,) = Catalog(config).table_refs()
    return found


@pytest.fixture
def files(owner: SqlCatalog, tmp_path: Path) -> list[Path]:
    """Two old files of a killed writer, and a young one."""
    live = next((tmp_path / "warehouse").rglob("*.parquet"))
    made = [Path(shutil.copy(live, live.with_name(f"{name}.parquet"))) for name in ("a", "b", "young")]
    make_old(*(tmp_path / "warehouse").rglob("*.*"), days=10)
    make_old(made[0])
    make_old(made[2], days=0)
    return made


def test_the_command_lists_by_default_and_deletes_nothing_without_a_terminal(run: Run, files: list[Path]):
    for arguments in ((), ("-n",), ("-n", "--yes")):
        code, out, err = run("tables", "remove-orphans", "orders", *arguments)
        assert code == 3, err
        assert [line.split()[:3] for line in out.splitlines()] == [["would", "be", "deleted:"]] * 2
        assert "sales.orders: 2 orphan files older than 3 d, " in err
    assert all(file.exists() for file in files)
    code, out, err = run("tables", "remove-orphans", "orders", "--json", "--older-than", "5d")
    (entry,) = map(json.loads, out.splitlines())
    assert (code, entry["file"]["path"], entry["deleted"]) == (3, str(files[1]), False)
    assert entry["file"]["bytes"] == files[1].stat().st_size
    for file in files:
        file.unlink()
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (0, "")
    assert "no orphan files older than 3 d" in err
    assert json.loads(run("audit", "--json")[1] or "[]") == []


@pytest.mark.parametrize(
    ("age", "words"),
    [
        ("23h", "--older-than 23h is less than 24 h: no version of the table lists the files of a write"),
        ("0s", "--older-than 0s is less than 24 h"),
        ("3", "--older-than: 3 has no unit"),
        ("soon", "--older-than: 'soon' is not a duration"),
    ],
)
@pytest.mark.usefixtures("files")
def test_an_age_that_endangers_running_writes_is_one_line_and_exit_2(run: Run, age: str, words: str):
    code, out, err = run("tables", "remove-orphans", "orders", "--older-than", age, "--yes")
    assert (code, out) == (2, "")
    assert err.splitlines()[1:] == ["Try: lakefold tables remove-orphans --help"]
    assert words in err


def test_a_table_of_another_format_is_refused_by_name(run: Run, files: list[Path], toys: Any, tmp_path: Path):
    create(tmp_path / "lake" / "t1", name="t1")
    code, out, err = run("tables", "remove-orphans", str(tmp_path / "lake" / "t1"), "--yes")
    assert (code, out) == (1, "")
    assert "toy tables have no orphan removal" in err


def test_the_owner_s_setting_and_another_table_in_the_directory_are_refused(
    run: Run, owner: SqlCatalog, files: list[Path]
):
    inside = str(files[0].parent / "other")
    owner.create_table("sales.other", SCHEMA, location=inside)
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (1, "")
    assert f"table sales.other has files in {inside}" in err
    owner.drop_table("sales.other")
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (1, "")
    assert "is the metadata of another table" in err
    shutil.rmtree(inside)
    owner.load_table("sales.orders").transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (1, "")
    assert "gc.enabled is false" in err
    assert all(file.exists() for file in files)


def test_a_directory_that_a_table_of_another_format_shares_is_refused(
    run: Run, files: list[Path], toys: Any, tmp_path: Path
):
    config, base = tmp_path / "lakefold.toml", files[0].parents[1]
    create(base, name="t1")
    config.write_text(f'{config.read_text()}[[sources]]\npath = "{base}"\nprefix = "toys."\n')
    code, out, err = run("tables", "remove-orphans", "sales.orders", "--yes")
    assert (code, out) == (1, "")
    assert f"has files in {base}, which is not outside of {base}" in err
    assert all(file.exists() for file in files)


def test_a_halted_or_paused_table_is_listed_and_nothing_of_it_is_deleted(run: Run, files: list[Path], tmp_path: Path):
    ref = served_table(tmp_path)
    with_store(tmp_path, lambda store: store.register_table(ref, "compact"))
    assert run("pause", "sales.orders")[0] == 0
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (12, "")
    assert "no file is deleted: paused" in err
    assert run("resume", "sales.orders")[0] == 0
    with_store(tmp_path, lambda store: store.halt_table(ref, "rows differ"))
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (12, "")
    assert "no file is deleted: halted: rows differ" in err
    assert run("tables", "remove-orphans", "orders")[0] == 3
    assert all(file.exists() for file in files)


def test_staged_and_superseded_files_of_the_database_stay_also_under_an_earlier_name(
    run: Run, files: list[Path], tmp_path: Path
):
    ref = with_identity(FORMAT, served_table(tmp_path))
    earlier = TableRef(name="old.orders", format="iceberg", location=ref.location, catalog=ref.catalog)

    def claimed(store: Store, table: TableRef, plan_id: str) -> Claim:
        store.register_table(table, "compact")
        slices = (FileSlice(partition="", file_id="f", path="/x", bytes=1),)
        plan = Plan(
            plan_id=plan_id,
            table=table,
            kind=PlanKind.CLUSTERING,
            groups=(ClusteringGroup(partition="", slices=slices, output_files=1),),
            options=RewriteOptions(target_file_max_bytes=1),
            snapshot_instant="",
        )
        store.add_plan(plan, request_id=None, actor="test", estimate={})
        claim = store.claim("executor")
        assert claim is not None
        return claim

    def fill(store: Store) -> None:
        claim = claimed(store, earlier, "p")
        commit = Commit(
            plan_id="p",
            instant="1",
            outputs=(OutputFile(partition="", path="/y", bytes=1, rows=1),),
            superseded=(SupersededVersion(partition="", path=str(files[1]), bytes=1, instant="1"),),
        )
        figures = PartitionFigures(partition="", files_before=2, bytes_before=2, files_after=1, bytes_after=1)
        store.complete(claim, commit, [figures], {})
        store.record_staged(claimed(store, ref, "q"), StagedWork(token="t", paths=(str(files[0]),)))

    with_store(tmp_path, fill)
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert (code, out) == (0, ""), err
    assert "no orphan files" in err
    assert all(file.exists() for file in files)


@pytest.mark.spark
def test_yes_deletes_the_files_and_the_audit_names_the_actor(run: Run, files: list[Path], spark: Any, tmp_path: Path):
    config, settings = tmp_path / "lakefold.toml", jdbc_settings(tmp_path, CATALOG)
    for key, value in settings.items():
        spark.conf.set(key, value)
    config.write_text(
        config.read_text().replace("catalog.prod", f"catalog.{CATALOG}").replace('"prod"', f'"{CATALOG}"')
    )
    owner = SqlCatalog(CATALOG, uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path / "warehouse"))
    owner.create_namespace("sales")
    append(owner.create_table("sales.orders", SCHEMA, location=f"{tmp_path}/warehouse/own"), rows(0, 50))
    owner.engine.dispose()
    live = next((tmp_path / "warehouse/own").rglob("*.parquet"))
    orphan = Path(shutil.copy(live, live.with_name("orphan.parquet")))
    make_old(orphan)
    code, out, err = run("tables", "remove-orphans", "orders", "--yes")
    assert code == 0, err
    assert out.splitlines()[0].startswith(f"deleted: {orphan} ")
    assert "sales.orders: deleted 1 file, " in out
    assert (orphan.exists(), live.exists()) == (False, True)
    (entry,) = map(json.loads, run("audit", "--json")[1].splitlines())
    assert (entry["action"], entry["table"]) == ("orphan removal", "sales.orders")
    assert entry["detail"].startswith("1 file, ")
