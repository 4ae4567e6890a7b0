# SPDX-License-Identifier: Apache-2.0
"""The schema: migrations, what a wrong one says, and what the database refuses by itself."""

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import IntegrityError
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql
from support import free_port

from lake.plan import LIVE_STATES, TRANSITIONS, PlanState
from service.control.store import DatabaseUnreachable, SchemaMismatch, Store, StoreError
from service.control.store.database import Database, parse_url
from service.control.store.models import Base
from service.control.store.schema import HEAD_REVISION, alembic_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/deep/er/lakefold.db"
        return
    server = request.getfixturevalue("postgres_url")
    name = f"lakefold_empty_{uuid.uuid4().hex[:8]}"
    yield postgres.new_database(server, name)
    postgres.drop_database(server, name)


def test_upgrade_makes_the_schema_from_nothing_and_check_is_then_content(empty_url: str) -> None:
    store = Store(empty_url)
    with pytest.raises(SchemaMismatch, match=r"run: lakefold db upgrade"):
        store.check()
    store.upgrade()
    store.check()
    add(store, "dt=1")
    store.upgrade()
    store.check()
    assert len(store.plans()) == 1, "a second upgrade changes nothing"
    store.close()


@pytest.mark.slow
@pytest.mark.crossed
def test_several_processes_may_upgrade_at_once(empty_url: str) -> None:
    program = f"from service.control.store import Store; s = Store({empty_url!r}); s.upgrade(); s.check()"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
    store = Store(empty_url)
    store.check()
    store.close()


def test_the_models_and_the_migrations_describe_the_same_schema(database_url: str) -> None:
    engine = create_engine(parse_url(database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        differences = compare_metadata(context, Base.metadata)
        names = {
            (table, check["name"])
            for table in Base.metadata.tables
            for check in inspect(connection).get_check_constraints(table)
        }
    engine.dispose()
    assert differences == []
    wanted = {
        (table.name, str(constraint.name))
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if str(constraint.name).startswith("ck_")
    }
    assert names == wanted


def test_the_migrations_can_be_downgraded(empty_url: str) -> None:
    store = Store(empty_url)
    store.upgrade()
    database = Database(empty_url)
    config = alembic_config()
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with pytest.raises(SchemaMismatch):
        store.check()
    store.upgrade()
    store.check()
    database.close()
    store.close()


def test_a_schema_that_is_not_this_lakefolds_is_refused_in_one_line(database_url: str) -> None:
    store = Store(database_url)
    sql(database_url, "UPDATE alembic_version SET version_num = 'feedbeef'")
    for attempt in (store.check, store.upgrade):
        with pytest.raises(SchemaMismatch) as refused:
            attempt()
        assert "at revision feedbeef, later than this release" in str(refused.value)
        assert "run: lakefold db upgrade" in str(refused.value)
        assert "\n" not in str(refused.value)
    store.close()


def test_any_use_of_a_database_without_the_schema_names_the_command_to_run(empty_url: str, tmp_path: Path) -> None:
    if empty_url.startswith("sqlite"):
        (tmp_path / "deep" / "er").mkdir(parents=True)
        (tmp_path / "deep" / "er" / "lakefold.db").touch()
    store = Store(empty_url)
    with pytest.raises(SchemaMismatch, match=r"run: lakefold db upgrade"):
        store.table_states()
    with pytest.raises(SchemaMismatch, match=r"run: lakefold db upgrade"):
        store.claim("e")
    store.close()


def test_an_unreachable_postgresql_is_one_line_without_the_password() -> None:
    port = free_port()
    store = Store(f"postgresql://ada:s3cret@127.0.0.1:{port}/lake?sslpassword=s3cret")
    for use in (store.check, store.figures, store.upgrade):
        with pytest.raises(DatabaseUnreachable) as refused:
            use()
        text = str(refused.value)
        assert f"ada:***@127.0.0.1:{port}/lake" in text
        assert "database.url" in text
        assert "s3cret" not in text
        assert "\n" not in text


def test_a_wrong_password_is_unreachable_and_not_shown(postgres_url: str) -> None:
    with pytest.raises(DatabaseUnreachable) as refused:
        Store(re.sub(r":[^:@]+@", ":wr0ng@", postgres_url)).check()
    assert "wr0ng" not in str(refused.value)


def test_a_server_that_restarts_is_found_again(postgres_url: str, database_url: str) -> None:
    store = Store(database_url)
    store.figures()
    if database_url.startswith("postgresql"):
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        sql(postgres_url, others, name=database_url.rsplit("/", 1)[1])
    assert store.figures().plans == ()
    store.close()


def test_a_sqlite_file_that_cannot_be_opened_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("this is not a database, and it is long enough to be taken for one" * 20)
    with pytest.raises(DatabaseUnreachable, match=r"not a database.*database\.url"):
        Store(f"sqlite:///{tmp_path}/file").check()
    (tmp_path / "directory").mkdir()
    with pytest.raises(DatabaseUnreachable, match=r"unable to open database file.*database\.url"):
        Store(f"sqlite:///{tmp_path}/directory").check()
    with pytest.raises(DatabaseUnreachable, match=r"database\.url"):
        Store(f"sqlite:///{tmp_path}/file/below/x.db").upgrade()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:p@h/d", "not with mysql"),
        ("nonsense", "is not a database URL"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
    ],
)
def test_a_url_that_is_none_of_ours_is_refused_when_the_store_is_made(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        Store(url)
    assert "database.url" in str(refused.value)


@pytest.mark.slow
def test_the_installed_package_needs_no_file_outside_it(tmp_path: Path) -> None:
    for package in ("lake", "planner", "service", "migrations"):
        shutil.copytree(ROOT / package, tmp_path / "odd 100% place" / package)
    program = "from service.control.store import Store; s = Store('sqlite:///x.db'); s.upgrade(); s.check()"
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "odd 100% place")},
        timeout=60,
    )


# --- what the database refuses by itself -----------------------------------------------------------------------------

_COLUMNS = {
    PlanState.REQUESTED: "finalized_at_ms = NULL, lease_until_ms = NULL, instant = NULL",
    PlanState.INFLIGHT: "finalized_at_ms = NULL, lease_until_ms = 1, executor = 'e', instant = NULL, epoch = epoch + 1",
    PlanState.COMPLETED: "finalized_at_ms = 1, lease_until_ms = NULL, instant = 'i'",
    PlanState.FAILED: "finalized_at_ms = 1, lease_until_ms = NULL, instant = NULL",
    PlanState.CANCELLED: "finalized_at_ms = 1, lease_until_ms = NULL, instant = NULL",
}
_WAY_TO = {
    PlanState.REQUESTED: [],
    PlanState.INFLIGHT: [PlanState.INFLIGHT],
    PlanState.COMPLETED: [PlanState.INFLIGHT, PlanState.COMPLETED],
    PlanState.FAILED: [PlanState.INFLIGHT, PlanState.FAILED],
    PlanState.CANCELLED: [PlanState.CANCELLED],
}


def move(url: str, plan_id: str, to: PlanState) -> None:
    """Change a plan's state in raw SQL, with everything else the CHECKs ask for."""
    sql(url, f"UPDATE plan SET state = '{to}', {_COLUMNS[to]} WHERE id = :id", id=plan_id)


def legal_in_database(url: str) -> set[tuple[str, str]]:
    """The transitions that the database lets through in raw SQL."""
    store = Store(url)
    legal, refusals = set(), list[str]()
    for before in PlanState:
        for after in PlanState:
            if before is after:
                continue
            plan_id = add(store, f"{before}-{after}").plan_id
            for state in _WAY_TO[before]:
                move(url, plan_id, state)
            try:
                move(url, plan_id, after)
            except IntegrityError as error:
                refusals.append(str(error))
            if store.plan_state(plan_id) is after:
                legal.add((before.value, after.value))
    store.close()
    assert all("illegal transition of a plan" in refusal for refusal in refusals)
    return legal


def diagram() -> set[tuple[str, str]]:
    """The transitions of the state diagram in docs/lifecycle.md."""
    text = (ROOT / "docs" / "lifecycle.md").read_text()
    blocks = [b for b in re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL) if "stateDiagram-v2" in b]
    assert len(blocks) == 1, "docs/lifecycle.md has one state diagram"
    arrows = re.findall(r"^\s*(\w+|\[\*\])\s*-->\s*(\w+|\[\*\])", blocks[0], re.MULTILINE)
    return {(before, after) for before, after in arrows if "[*]" not in (before, after)}


def test_code_database_and_diagram_agree_on_every_transition(database_url: str) -> None:
    code = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert legal_in_database(database_url) == code
    assert diagram() == code


def test_a_plan_begins_as_requested_for_every_writer(database_url: str) -> None:
    store = Store(database_url)
    plan = add(store, "dt=1")
    (row,) = sql(database_url, "SELECT * FROM plan WHERE id = :id", id=plan.plan_id)
    for state in PlanState:
        if state is PlanState.REQUESTED:
            continue
        final = state not in LIVE_STATES
        values = dict(row._mapping) | {
            "id": f"copy-{state}",
            "state": state.value,
            "finalized_at_ms": 1 if final else None,
            "lease_until_ms": 1 if state is PlanState.INFLIGHT else None,
            "executor": "e",
            "instant": "i" if state is PlanState.COMPLETED else None,
            "epoch": 1,
        }
        columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
        with pytest.raises(IntegrityError, match="a plan begins as requested"):
            sql(database_url, f"INSERT INTO plan ({columns}) VALUES ({places})", **values)
    store.close()


@pytest.mark.paired("database_url")
@pytest.mark.parametrize(
    "change",
    [
        "epoch = epoch - 1",
        "epoch = -1",
        "attempts = attempts + 1",
        "lease_until_ms = NULL",
        "executor = NULL",
        "finalized_at_ms = 1",
        "instant = 'i'",
        "state = 'paused'",
        "kind = 'vacuum'",
        "state = 'completed', finalized_at_ms = 1, lease_until_ms = NULL",
        "state = 'failed', lease_until_ms = NULL",
        "state = 'failed', finalized_at_ms = 1",
        "cancel_requested_at_ms = 1",
        "table_name = 'nobody'",
        "request_id = 'nobody'",
    ],
)
def test_the_database_refuses_an_impossible_inflight_plan(database_url: str, change: str) -> None:
    store = Store(database_url)
    add(store, "dt=1")
    claimed(store)
    before = sql(database_url, "SELECT * FROM plan")
    with pytest.raises(IntegrityError):
        sql(database_url, f"UPDATE plan SET {change}")
    assert sql(database_url, "SELECT * FROM plan") == before
    store.close()


def test_a_claim_without_a_new_epoch_is_refused(database_url: str) -> None:
    store = Store(database_url)
    plan = add(store, "dt=1")
    store.requeue(claimed(store), "later")
    with pytest.raises(IntegrityError, match="the epoch of a plan never falls"):
        sql(database_url, "UPDATE plan SET state = 'inflight', lease_until_ms = 1, executor = 'e'")
    assert store.plan_state(plan.plan_id) is PlanState.REQUESTED
    store.close()


def test_keys_hold_partitions_idempotency_and_superseded_versions(database_url: str) -> None:
    store = Store(database_url)
    one, two = add(store, "dt=1"), add(store, "dt=2")
    store.complete(claimed(store), commit_of(one), figures_of(one), {})
    store.add_request(TRIPS.name, idempotency_key="k", actor="ada")
    for statement in (
        "INSERT INTO live_partition SELECT * FROM live_partition",
        "INSERT INTO live_partition (table_name, partition_path, holder_kind, plan_id)"
        " VALUES ('demo.trips', 'x', 'plan', 'nobody')",
        "INSERT INTO live_partition (table_name, partition_path, holder_kind) VALUES ('demo.trips', 'x', 'plan')",
        "INSERT INTO live_partition (table_name, partition_path, holder_kind, keeper)"
        " VALUES ('demo.trips', 'x', 'sweep', 'it never expires')",
        "UPDATE live_partition SET holder_kind = 'cleaner'",
        "UPDATE live_partition SET expires_at_ms = 1",
        f"DELETE FROM plan WHERE id = '{two.plan_id}'",
        "INSERT INTO superseded_version (plan_id, table_name, partition_path, path, bytes, instant, superseded_at_ms)"
        " SELECT plan_id, table_name, partition_path, path, bytes, instant, superseded_at_ms FROM superseded_version",
        "INSERT INTO plan_request (id, table_name, overrides, dry_run, idempotency_key, actor, created_at_ms)"
        " SELECT 'copy', table_name, overrides, dry_run, idempotency_key, actor, created_at_ms FROM plan_request",
        "UPDATE table_state SET mode = 'maybe'",
        "UPDATE table_state SET halted_at_ms = 1",
        "UPDATE plan_request SET answered_at_ms = 1",
    ):
        with pytest.raises(IntegrityError):
            sql(database_url, statement)
    store.close()


def test_the_revision_that_this_lakefold_requires_is_the_last_migration() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [HEAD_REVISION]
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True), "revisions are counted up, four digits each"
    assert all(re.fullmatch(r"\d{4}", revision) for revision in revisions)


@pytest.mark.slow
def test_checking_the_schema_does_not_load_alembic(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path}/x.db").upgrade()
    program = (
        "import sys; from service.control.store import Store; Store('sqlite:///x.db').check();"
        " assert not [m for m in sys.modules if m.startswith(('alembic', 'pyspark'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=60)
