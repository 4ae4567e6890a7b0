# SPDX-License-Identifier: Apache-2.0
"""``lakefold simulate`` and ``POST /v1/simulate``: the same document, from files, words, and another program."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from api_toys import add_token, client_of, context_at
from pages import ROOT, blocks_of, missing_line

from planner.writers.simulation import SETTINGS_BY_WRITER

pytestmark = pytest.mark.usefixtures("clean_environment")

SCENARIOS = sorted((ROOT / "docs" / "scenarios").glob("*.toml"))
PAGE = ROOT / "docs" / "planning.md"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_shipped_scenario_prints_its_files_and_over_http_has_the_same_document(scenario: Path, run, tmp_path):
    code, out, err = run("simulate", str(scenario), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    last = found["steps"][-1]
    assert last["files"] == len(last["layout"]) > 0
    assert last["bytes"] == sum(file["bytes"] for file in last["layout"])
    code, text, _ = run("simulate", str(scenario))
    assert code == 0
    assert len(re.findall(r"^ +\d+  (?:insert|update)", text, re.MULTILINE)) == len(found["steps"])
    assert scenario.name in PAGE.read_text()
    context = context_at(tmp_path)
    with client_of(context, add_token(context.store, "read")) as client:
        answer = client.post("/v1/simulate", json=tomllib.loads(scenario.read_text()))
    context.store.close()
    assert (answer.status_code, answer.json()) == (200, found)


def test_the_page_shows_the_output_of_the_command(run):
    (block,) = [block for block in blocks_of(PAGE) if "lakefold simulate" in block.text]
    words = block.text.replace("\\\n", " ").split()[1:]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert block.shown is not None
    assert missing_line(block.shown, out) is None


def test_the_example_of_a_scenario_on_the_page_is_right(run, tmp_path):
    (example,) = (
        toml for toml in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "[[batches]]" in toml
    )
    (tmp_path / "s.toml").write_text(
        example.replace(
            "[[batches]]",
            '[[batches]]\noperation = "insert"\nrows = 9\npartitions = ["dt=1", "dt=2"]\n\n[[batches]]',
            1,
        )
    )
    code, out, _ = run("simulate", "s.toml", "--json")
    assert code == 0
    assert len(json.loads(out)["steps"]) == 32


def test_every_setting_of_a_model_is_on_the_page_with_its_default():
    page = PAGE.read_text()
    for settings in SETTINGS_BY_WRITER.values():
        for key in settings:
            assert f"`{key}`" in page, key


def test_files_are_listed_one_by_one_with_their_outcomes(run):
    code, out, _ = run("simulate", str(ROOT / "docs" / "scenarios" / "hudi-mor.toml"), "--files")
    rows = [line.split() for line in out.splitlines()[3:]]
    assert code == 0
    assert [row[-1] for row in rows] == ["created", "logged", "compacted", "logged"]


def test_batches_are_read_from_csv_or_stdin_with_the_rest_in_options(run, tmp_path, monkeypatch):
    (tmp_path / "b.csv").write_text("batch,operation,partition,bytes\n1,insert,a,96MB\n1,insert,b,14MB\n")
    options = ("--writer", "hudi-cow", "--row-bytes", "175", "--set", "hoodie.copyonwrite.record.size.estimate=175")
    code, out, _ = run("simulate", "b.csv", *options, "--batch", "bulk_insert=1MB", "--json")
    found = json.loads(out)
    assert code == 0
    assert [[write["partition"] for write in step["writes"]] for step in found["steps"]] == [["a", "b"], [""]]
    assert found["steps"][0]["files"] == 2
    code, text, _ = run("simulate", "b.csv", *options)
    assert "insert 105 MiB into 2 partitions" in text

    class Stdin:
        def read(self) -> str:
            return 'writer = "hive"\n[[batches]]\noperation = "insert"\nrows = 3\n'

    monkeypatch.setattr("sys.stdin", Stdin())
    code, out, _ = run("simulate", "-", "--json")
    assert (code, json.loads(out)["steps"][0]["files"]) == (0, 3)


def test_a_setting_that_changes_nothing_is_reported_on_stderr(run):
    code, _, err = run(
        "simulate", "--writer", "hudi-cow", "--batch", "insert=1MB", "--set", "hoodie.clustering.inline=true"
    )
    assert (code, err) == (0, "hoodie.clustering.inline = true is not used: it changes none of this writer's files\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "writer is required"),
        (("--writer", "delta", "--batch", "insert=5"), 2, "'delta' is not one of hudi-cow, hudi-mor, hive"),
        (("--writer", "hive"), 2, "no batch; add at least one"),
        (("--writer", "hive", "--batch", "insert"), 2, "use the form insert=96MB"),
        (("--writer", "hive", "--batch", "insert=5 parsecs"), 2, "batch 1: bytes"),
        (("--writer", "hive", "--batch", "update=5"), 2, "batch 1: update"),
        (("--writer", "hive", "--batch", "insert=5", "--set", "frob"), 2, "is not KEY=VALUE"),
        (("--writer", "hive", "--batch", "insert=5", "--set", "frob=1"), 2, "frob is not a setting of this writer"),
        (("gone.toml",), 10, "gone.toml can't be read"),
    ],
)
def test_an_impossible_simulation_is_one_line_and_an_exit_code(words, code, says, run):
    found = run("simulate", *words)
    assert found[:2] == (code, "")
    assert says in found[2].splitlines()[0]


def test_a_wrong_scenario_over_http_is_422_with_the_reason_and_no_body_is_read_of_strangers_or_too_long(tmp_path):
    context = context_at(tmp_path)
    wrong = [
        {"writer": "hive", "batches": [{"operation": "update", "rows": 5}]},
        {"writer": "hive", "batches": [{"rows": 5}]},
        {"writer": "hive", "batches": []},
        {"writer": "hive", "batches": [{"operation": "insert", "rows": 10**15, "tasks": 10**9}]},
        {"writer": "hive", "batches": [{"operation": "insert", "rows": 5}], "frob": 1},
        {"writer": "hudi-cow", "batches": [{"operation": "insert", "bytes": 10**30}]},
    ]
    with client_of(context) as client:
        answers = [client.post("/v1/simulate", json=scenario) for scenario in wrong]
        large = client.post("/v1/simulate", json={"writer": "hive", "batches": [{"frob": "x" * 300_000}]})
        nobody = client.post("/v1/simulate", json=wrong[0], headers={"Authorization": "Bearer x"})
    context.store.close()
    assert [answer.status_code for answer in answers] == [422] * len(wrong)
    assert (large.status_code, nobody.status_code) == (413, 401)
    assert "is not possible on a Hive table" in answers[0].json()["detail"]
