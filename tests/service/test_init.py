# SPDX-License-Identifier: Apache-2.0
"""``lakefold init`` on directories of Hudi tables, without a JVM: what it finds, what it writes, what it refuses."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from databases import sqlite_at
from hudi_by_hand import PROPERTIES, T1, T2, ByHand
from pages import ROOT, blocks_of, missing_line
from s3_server import policy

from service.cli.commands import init
from service.control.config.loader import load_config
from service.control.config.table_settings import check_rules


@pytest.fixture(autouse=True)
def home(clean_environment, tmp_path):
    """An empty home that is the working directory too."""
    return tmp_path


def table(base: Path, files: int = 6, partitions: Sequence[str] = ("p",), **properties: str) -> Path:
    """A table of so many small files in each partition, written long enough ago to be planned."""
    base.mkdir(parents=True)
    made = ByHand(base, PROPERTIES | {key.replace("_", "."): value for key, value in properties.items()})
    for time, partition in zip((T1, T2), partitions, strict=False):
        written = [made.base_file(time, f"{partition}/f-{number}") for number in range(files)]
        made.complete(time, "deltacommit", *written, partition=partition)
    for path in (*base.glob("*/*.parquet"), *base.glob(".hoodie/*.deltacommit")):
        os.utime(path, (1.7e9, 1.7e9))
    return base


def rule(text: str, concurrency: str) -> str:
    """The file with its first rule uncommented, as a user would who declares how the writers work."""
    return re.sub(r"^# (\[\[tables\]\]|match|mode|concurrency)", r"\1", text, flags=re.MULTILINE).replace(
        '"?"', f'"{concurrency}"'
    )


def test_init_shows_the_found_tables_with_their_possible_plans_and_only_observes_them(home, run):
    table(home / "lake/sales/orders")
    table(home / "lake/sales/returns", files=1)
    code, out, err = run("init", "lake")
    assert code == 0
    lines = [re.split(r"\s{2,}", line) for line in out.splitlines()]
    assert lines[0] == ["TABLE", "FORMAT", "FILES", "SMALL", "SIZE", "WOULD BE PLANNED"]
    assert [(line[0], line[2], line[3]) for line in lines[1:]] == [
        ("sales.orders", "6", "6"),
        ("sales.returns", "1", "1"),
    ]
    assert re.fullmatch(r"6 files, .+ to rewrite", lines[1][-1])
    assert lines[2][-1] == "nothing (alone in its partition)"
    assert "nothing is rewritten before a rule allows it" in err
    config = load_config(home / "lakefold.toml")
    check_rules(config)
    assert ([source.path for source in config.sources], config.table_rules) == (["lake"], ())
    assert run("config", "check")[0] == 0


def test_predicted_cost_for_now_differs_from_the_cost_when_the_files_are_older(home, run):
    base = table(home / "lake/t")
    for path in base.rglob("*"):
        os.utime(path)
    out = run("init", "lake")[1]
    assert re.search(
        r"6 files, .+ to rewrite, not yet: waiting: modified \d+ s ago, until .+ UTC \(quiet_period is 15 min\).*$",
        out,
        re.M,
    )


def test_patterns_are_for_a_metastore(home, run):
    table(home / "lake/t")
    code, _, err = run("init", "lake", "--database", "sales", "--table", "*")
    where = "only for a metastore, thrift://host:9083, or a catalog, --spark-defaults; lake is a path"
    assert (code, f"--database and --table: {where}" in err) == (2, True)
    assert not (home / "lakefold.toml").exists()


def test_an_unavailable_metastore_is_reported_in_one_line(home, run):
    code, out, err = run("init", "thrift://127.0.0.1:1")
    assert (code, out) == (10, "")
    assert len(err.splitlines()) == 1
    assert "127.0.0.1:1" in err
    assert not (home / "lakefold.toml").exists()


def test_the_next_steps_name_the_commands_in_their_order_and_the_table_with_most_to_do(home, run):
    table(home / "lake/a", files=3)
    table(home / "lake/b", files=9)
    steps = re.findall(r"^  (lakefold .+?)\s+#", run("init", "lake")[2], re.MULTILINE)
    assert steps == ["lakefold db upgrade", "lakefold plans request b -n", "lakefold serve"]
    other = re.findall(r"^  (lakefold .+?)\s+#", run("init", "lake", "--config", "x.toml")[2], re.MULTILINE)
    assert other == [f"{step} --config x.toml" for step in steps]


def test_a_rule_is_valid_only_if_it_declares_how_the_writers_work(home, run):
    table(home / "lake/sales/orders")
    run("init", "lake")
    file = home / "lakefold.toml"
    written = file.read_text()
    file.write_text(rule(written, "?"))
    code, _, err = run("config", "check")
    assert (code, "concurrency" in err, "'single_writer' or 'occ'" in err) == (1, True, True)
    file.write_text(rule(written, "single_writer"))
    assert json.loads(run("config", "check", "--json")[1])["modes"]["compact"] == 1
    file.write_text(rule(written, "occ"))
    code, _, err = run("config", "check")
    assert (code, "set write_options hoodie.write.lock.provider" in err) == (3, True)


def test_a_file_that_exists_is_left_as_it_is(home, run):
    table(home / "lake/t")
    (home / "lakefold.toml").write_text("# mine\n")
    code, out, err = run("init", "lake")
    assert (code, out) == (1, "")
    assert err.startswith("lakefold: lakefold.toml exists and was not changed; ")
    assert (home / "lakefold.toml").read_text() == "# mine\n"


def test_the_file_written_is_the_one_that_commands_read(home, run, monkeypatch):
    table(home / "lake/t")
    (home / "etc").mkdir()
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(home / "etc/lakefold.toml"))
    assert run("init", "lake")[0] == 0
    assert load_config().sources[0].path == str(home / "lake")  # it would not be found from there as it was typed
    assert [entry["tables"] for entry in map(json.loads, run("config", "check", "--json")[1].splitlines())] == [1]


def test_without_a_table_nothing_is_written(home, run):
    (home / "lake").mkdir()
    for path, why in (("lake", "no table of a supported format (hudi) in lake"), ("nowhere", "no such directory")):
        code, out, err = run("init", path)
        assert (code, out, why in err) == (10, "", True)
    assert not (home / "lakefold.toml").exists()


def test_a_word_that_is_no_directory_may_be_meant_as_a_catalog(home, run):
    code, _, err = run("init", "prod")
    assert code == 10
    assert "if prod is an Iceberg catalog, give its spark-defaults.conf by --spark-defaults FILE" in err


def test_a_refused_table_is_reported_and_the_other_tables_are_served(home, run):
    table(home / "lake/old", hoodie_table_version="5")
    table(home / "lake/t")
    code, out, err = run("init", "lake")
    assert code == 3
    assert "can't be used" in out
    assert "old: hoodie.table.version = 5, only 6, 8, 9 are supported" in err
    assert "# Can't be used: old: hoodie.table.version = 5" in (home / "lakefold.toml").read_text()


def test_any_directory_name_is_a_comment_or_a_quoted_string(home, run):
    table(home / 'lake/a\n[[tables]]\nmatch = "*"\nmode = "compact"\n#')
    table(home / "lake/b 1[2]")
    code, _, err = run("init", "lake")
    assert (code, "lakefold plans request 'b 1[2]' -n" in err) == (3, True)  # hudi-rs can't read the other
    assert load_config(home / "lakefold.toml").table_rules == ()
    uncommented = rule((home / "lakefold.toml").read_text(), "single_writer")
    (home / "lakefold.toml").write_text(uncommented)
    modes = json.loads(run("config", "check", "--json")[1])["modes"]
    assert modes == {"compact": 1, "propose": 0, "observe": 1, "off": 0}


def test_only_a_limited_number_of_tables_is_checked_and_the_others_are_counted(home, run, monkeypatch):
    monkeypatch.setattr(init, "MAX_TABLES_READ", 2)
    for name in "abcd":
        table(home / "lake" / name, files=2)
    code, out, _ = run("init", "lake")
    assert (code, out.splitlines()[-1]) == (0, "… and 2 tables more, not read yet")
    assert "4 tables" in (home / "lakefold.toml").read_text()


def test_json_is_one_object_with_every_table(home, run):
    table(home / "lake/t")
    code, out, err = run("init", "lake", "--json")
    found = json.loads(out)
    assert (code, err, found["file"], found["unread_tables"]) == (0, "", "lakefold.toml", 0)
    (seen,) = found["tables"]
    assert (seen["table"], seen["format"], seen["files"], seen["reducible_files"], seen["refused"]) == (
        "t",
        "hudi",
        6,
        6,
        None,
    )
    assert seen["writers"].startswith("last write ")


def test_evidence_of_a_tables_writers_is_in_the_file_and_in_the_tables_facts(home):
    made = ByHand(home / "t")
    assert made.facts["writers"].startswith("no write on the active timeline; no heartbeats, ")
    assert made.facts["writers"].endswith("; no lock file in the table; external locks can't be seen")
    made.complete(T1, "deltacommit", made.base_file(T1))
    (home / "t/.hoodie/.heartbeat").mkdir()
    (home / "t/.hoodie/.locks").mkdir()
    (home / "t/.hoodie/.locks/table_lock.json").write_text('{"expired": true}')
    (home / "t/.hoodie/lock").touch()
    assert re.fullmatch(
        "last write .+ ago, 1 in the last day; heartbeats, which writers under optimistic concurrency keep; "
        "the lock of a FileSystemBasedLockProvider and a StorageBasedLockProvider",
        made.facts["writers"],
    )


def test_no_java_is_started(home, run, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError(f"a process was started: {arguments}")

    table(home / "lake/t")
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    assert run("init", "lake")[0] == 0


def test_the_quick_start_shows_the_output_of_its_commands(home, run):
    table(home / "lake/sales/orders", files=2, partitions=("dt=2026-01-01", "dt=2026-01-02"))
    database = home / ".local/share/lakefold"
    database.mkdir(parents=True)
    sqlite_at(database)  # bringing it to this schema takes no time then
    shown = 0
    for block in blocks_of(ROOT / "docs/quickstart.md"):
        if block.why is not None:
            continue
        if block.text.startswith("lakefold serve"):
            break
        shell, commands = re.split(r"^(?=lakefold )", block.text, maxsplit=1, flags=re.MULTILINE)
        subprocess.run(["bash", "-euc", shell], check=True)
        printed = [run(*shlex.split(line)[1:]) for line in commands.splitlines()]
        assert [code for code, _, _ in printed] == [0] * len(printed), block
        text = "\n".join(out + err for _, out, err in printed)
        if block.shown is not None:
            shown += 1
            assert missing_line(block.shown, text) is None, f"{block} prints\n{text}"
    assert shown >= 4


def test_a_bucket_is_read_with_the_settings_of_the_environment_and_no_key_is_written(
    home, run, bucket, s3_server, monkeypatch
):
    s3_server.upload(table(home / "here/orders"), f"s3://{bucket}/lake/sales/orders")
    before = len(s3_server.requests())
    for key, value in s3_server.settings.items():
        monkeypatch.setenv(f"LAKEFOLD_SPARK__{key.upper()}", value)
    code, out, err = run("init", f"s3a://{bucket}/lake")
    assert code == 0, err
    assert out.splitlines()[1].startswith("sales.orders  hudi ")
    text = (home / "lakefold.toml").read_text()
    assert f'[[sources]]\npath = "s3a://{bucket}/lake"' in text
    assert "[spark]  # access of lakefold and Spark to the object store" in text
    assert not any(value in text for key, value in s3_server.settings.items() if "key" in key)
    for command in ("config check", "db upgrade", "plans request sales.orders -n", "tables explain sales.orders"):
        code, _, err = run(*command.split())
        assert code == 0, err
    writes = {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    asked = s3_server.actions(bucket, since=before)
    assert "s3:GetObject" in asked <= policy(ROOT / "docs/object-stores.md") - writes, "as the page on S3 says"
