# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables history``, its twin over HTTP and its page, on a Hudi timeline made by hand."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from api_toys import client_of, context_at, problem
from hudi_by_hand import PROPERTIES, Written

from lake.model import TableRef

pytestmark = pytest.mark.usefixtures("clean_environment")

MIB = 1 << 20
BEGAN = datetime(2026, 1, 10, tzinfo=UTC)
RULES = '[[sources]]\npath = "lake"\n[[tables]]\nmatch = "*"\n'


@pytest.fixture
def table(tmp_path) -> Written:
    """Three inserts, an insert overwrite, a clustering by a plan, a clean, a savepoint and a write that is pending."""
    made = Written(tmp_path / "lake/t", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    for hour in range(3):
        key = {"extraMetadata": {"streamer.checkpoint.key.v2": "7"}} if hour == 2 else {}
        made.commit(BEGAN + timedelta(hours=hour), {f"dt=1/f-{hour}": 8 * MIB}, **key)
    made.commit(
        BEGAN + timedelta(hours=3), {"dt=2/g": MIB}, "INSERT_OVERWRITE", partitionToReplaceFileIds={"dt=2": ["old"]}
    )
    made.commit(
        BEGAN + timedelta(hours=4),
        {"dt=1/m": 24 * MIB},
        "CLUSTER",
        partitionToReplaceFileIds={"dt=1": ["f-0", "f-1", "f-2"]},
        extraMetadata={"lakefold.plan": "0198", "lakefold.epoch": "2"},
    )
    cleaned = {"dt=1": {"partitionPath": "dt=1", "successDeleteFiles": ["f-0_0-1-1_20260110000000000.parquet"]}}
    saved = {"dt=1": {"savepointDataFile": ["a.parquet", "b.parquet"]}}
    for name, record in {
        "20260110050000000.clean": {"partitionMetadata": cleaned},
        "20260110040000000.savepoint": {"savepointedBy": "eve", "comments": "audit", "partitionMetadata": saved},
        "20260110060000000.commit.requested": "",
        "20260110060000000.inflight": "",
    }.items():
        (made.base / ".hoodie" / name).write_text(json.dumps(record) if record else "")
    return made


@pytest.fixture
def here(table, tmp_path, run):
    """The same table, known to a database."""
    context = context_at(tmp_path, rules=RULES)
    context.store.register_table(TableRef(name="t", format="hudi", location=str(table.base)), "observe")
    yield run
    context.store.close()


def actions(run, *words: str) -> list[dict]:
    code, out, err = run("tables", "history", "t", *words, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_each_action_has_time_actor_and_files(here):
    found = {action["key"].removeprefix("202601100"): action for action in actions(here, "--files", "10")}
    assert list(found) == [
        "60000000.commit",
        "50000000.clean",
        "40000000.savepoint",
        "40000000.replacecommit",
        "30000000.replacecommit",
        "20000000.commit",
        "10000000.commit",
        "00000000.commit",
    ]
    pending, clean, saved, rewrite, overwrite, streamed, plain, _ = found.values()
    assert (pending["state"], pending["completed_at"], pending["by"]) == ("inflight", None, None)
    assert [file["path"] for file in clean["removed"]["files"]] == ["dt=1/f-0_0-1-1_20260110000000000.parquet"]
    assert (saved["by"], saved["notes"]) == ("eve", ["comment: audit", "retains 2 files"])
    assert (rewrite["by"], rewrite["plan_id"], rewrite["epoch"]) == ("lakefold", "0198", 2)
    assert (rewrite["is_rewrite"], rewrite["added"]["bytes"]) == (True, 24 * MIB)
    assert [file["file_id"] for file in rewrite["removed"]["files"]] == ["f-0", "f-1", "f-2"]
    assert rewrite["removed"]["bytes"] is None, "the timeline names file groups without sizes"
    assert (overwrite["operation"], overwrite["is_rewrite"], overwrite["partitions"]) == ("insert_overwrite", False, 1)
    assert (streamed["by"], plain["by"]) == ("Hudi Streamer", None)
    assert plain["began_at"] == "2026-01-10T01:00:00+00:00"
    assert plain["added"]["files"][0]["path"] == "dt=1/f-1_0-1-1_20260110010000000.parquet"


def test_pages_follow_each_other_without_gap_and_end(here):
    whole, after, seen = [action["key"] for action in actions(here)], None, []
    for _ in range(3):
        code, out, err = here(
            "tables", "history", "t", "--limit", "3", *(("--after", after) if after else ()), "--json"
        )
        assert code == 0, err
        page = [json.loads(line)["key"] for line in out.splitlines()]
        seen, after = seen + page, page[-1]
    assert seen == whole


def test_a_list_of_files_has_the_requested_length_and_the_count_of_all_files(here):
    by_key = {action["key"]: action for action in actions(here, "--files", "1")}
    removed = by_key["20260110040000000.replacecommit"]["removed"]
    assert (removed["count"], len(removed["files"])) == (3, 1)


def test_only_the_records_of_the_page_are_read(here, monkeypatch):
    from lake.formats.hudi.timeline.timeline import Timeline

    read, metadata = [], Timeline.metadata
    monkeypatch.setattr(Timeline, "metadata", lambda self, one: read.append(one.time) or metadata(self, one))
    actions(here, "--limit", "2", "--after", "20260110030000000.replacecommit")
    assert sorted(read) == ["20260110010000000", "20260110020000000"]


def test_the_command_prints_a_line_for_each_action(here):
    code, text, notes = here("tables", "history", "t", "--limit", "4", "--files", "1")
    assert (code, "--after 20260110040000000.replacecommit" in notes) == (0, True)
    assert "1 file, 24.0 MiB" in text
    assert "plan 0198" in text
    assert "  - dt=1/f-0\n" in text
    assert "20260110040000000.savepoint: comment: audit; retains 2 files\n" in text


@pytest.mark.parametrize("after", ["x", "20260110.commit", "../../etc"])
def test_a_cursor_that_is_no_key_is_refused_in_one_line(here, after):
    code, _, err = here("tables", "history", "t", "--after", after)
    assert code != 0
    assert f"{after!r} is not an action of a Hudi table" in err.replace("\n", " ")


def test_the_api_and_the_page_show_the_same(here, tmp_path):
    context = context_at(tmp_path, rules=RULES)
    with client_of(context) as client:
        first = client.get("/v1/tables/t/history", params={"limit": 3})
        second = client.get("/v1/tables/t/history", params={"limit": 3, "after": first.json()["next"]})
        assert 'rel="next"' in first.headers["Link"]
        keys = [action["key"] for answer in (first, second) for action in answer.json()["items"]]
        assert keys == [action["key"] for action in actions(here, "--limit", "6")]
        page = client.get("/history", params={"table": "t"}).text
        assert page.count('<th scope="row"') == 8
        for part in ("insert_overwrite", "Hudi Streamer", "retains 2 files", "3 files", "dt=<wbr>1/"):
            assert part in page, part
        assert "is not an action of a Hudi table" in client.get("/history", params={"table": "t", "after": "<b>"}).text
        assert 'href="/history?table=t"' in client.get("/tables/t").text
        problem(client.get("/v1/tables/none/history"), 404, "not-found")
        problem(client.get("/v1/tables/t/history", params={"after": "x"}), 422, "rejected")
    context.store.close()


def test_archived_actions_follow_the_active_ones(table, here):
    import pyarrow as pa
    import pyarrow.parquet as pq

    properties = table.base / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("timeline.layout.version=1", "timeline.layout.version=2"))
    home = table.base / ".hoodie/timeline"
    (home / "history").mkdir(parents=True)
    (home / "20260110030000000_20260110030005000.commit").write_text(json.dumps({"operationType": "UPSERT"}))

    def row(time: str, action: str, record: dict) -> dict:
        document = json.dumps(record).encode()
        return {"instantTime": time, "completionTime": time, "action": action, "plan": None, "metadata": document}

    stat = {"fileId": "f-1", "path": "p/f-1_0-1-1_20260110020000000.parquet", "fileSizeInBytes": 9, "prevCommit": "x"}
    stat["prevBaseFile"] = "f-1_0-1-1_20260110010000000.parquet"
    written = {"partitionToWriteStats": {"p": [stat]}, "operationType": "UPSERT"}
    archives = {
        # the clean is older than the commit in the other file: the ranges of two files overlap
        "20260110000000000_20260110015900000_0": [
            row("20260110000000000", "commit", {}),
            row("20260110015900000", "clean", {"partitionMetadata": {}}),
        ],
        "20260110010000000_20260110020000000_0": [
            row("20260110010000000", "commit", {}),
            row("20260110020000000", "commit", written),
        ],
    }
    for name, rows in archives.items():
        pq.write_table(pa.Table.from_pylist(rows), home / "history" / f"{name}.parquet")
    whole = actions(here, "--files", "1")
    expected = [
        "20260110030000000.commit",
        "20260110020000000.commit",
        "20260110015900000.clean",
        "20260110010000000.commit",
        "20260110000000000.commit",
    ]
    assert [action["key"] for action in whole] == expected
    assert whole[1]["removed"]["files"][0]["path"] == "p/f-1_0-1-1_20260110010000000.parquet"
    paged, after = [], None
    for _ in range(5):
        (one,) = actions_of_page(here, after)
        after = one["key"]
        paged.append(after)
    assert paged == expected


def actions_of_page(run, after: str | None) -> list[dict]:
    code, out, _ = run("tables", "history", "t", "--limit", "1", *(("--after", after) if after else ()), "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_a_table_of_a_format_that_shows_no_actions_is_refused(tmp_path: Path, monkeypatch):
    from toys.minimal import MinimalFormat

    from lake.errors import Rejected
    from service.control.config.loader import load_config
    from service.control.config.table_settings import configure_table
    from service.control.planning.table_history import load_actions

    config = tmp_path / "lakefold.toml"
    config.write_text("[database]\nurl = 'sqlite://'\n")
    found = configure_table(load_config(config), TableRef(name="m", format="minimal", location=str(tmp_path)))
    monkeypatch.setattr("service.control.config.table_settings.load_format", lambda _: MinimalFormat())
    with pytest.raises(Rejected, match="m: minimal tables do not show the actions on them"):
        load_actions(None, found, limit=5)  # type: ignore[arg-type]
