# SPDX-License-Identifier: Apache-2.0
"""``lakefold tables replay`` and its twin over HTTP, on a Hudi timeline made by hand."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from api_toys import add_token, client_of, context_at
from hudi_by_hand import PROPERTIES, Written

from lake.formats.hudi.format import HudiFormat
from lake.model import TableRef
from planner.replay.events import writer_history
from planner.replay.policy_replay import replay_policy
from service.control.planning.replay import ReplayTimeout
from service.problems import BAD_SETTING

pytestmark = pytest.mark.usefixtures("clean_environment")

MIB = 1 << 20
RULES = '[[sources]]\npath = "lake"\n[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\n'
GRID = ("--set", "min_input_files=2,8", "--set", "target_file_max=512MiB,1GiB")


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def home(tmp_path) -> Path:
    """Ten days, each with a partition that gets a file of 8 MiB an hour; one day was clustered by a plan."""
    now, table = _now(), Written(tmp_path / "lake/t", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    for hour in range(240):
        table.commit(now - timedelta(hours=239.5 - hour), {f"dt={hour // 24}/f-{hour}": 8 * MIB})
    table.commit(
        now - timedelta(minutes=20),
        {"dt=2/m": 24 * 8 * MIB},
        "CLUSTER",
        partitionToReplaceFileIds={"dt=2": [f"f-{hour}" for hour in range(48, 72)]},
        extraMetadata={"lakefold.plan": "0198"},
    )
    return tmp_path


@pytest.fixture
def scattered(tmp_path, run):
    """Four days of a bulk insert an hour, each with eight files of 2 MiB, all by the same streamer."""
    now, table = _now(), Written(tmp_path / "lake/t", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    key = {"deltastreamer.checkpoint.key": "kafka,0:1"}
    for hour in range(96):
        files = {f"dt={hour // 24}/f-{hour}-{number}": 2 * MIB for number in range(8)}
        table.commit(now - timedelta(hours=95.5 - hour), files, "BULK_INSERT", extraMetadata=key)
    context = context_at(tmp_path, rules=RULES)
    context.store.register_table(TableRef(name="t", format="hudi", location=str(tmp_path / "lake/t")), "compact")
    yield run
    context.store.close()


@pytest.fixture
def here(home, run):
    """The same table, known to a database."""
    context = context_at(home, rules=RULES)
    context.store.register_table(TableRef(name="t", format="hudi", location=str(home / "lake/t")), "compact")
    yield run
    context.store.close()


def test_a_history_is_replayed_under_every_combination_and_one_policy_is_recommended(here):
    code, out, err = here("tables", "replay", "t", "--days", "9", *GRID, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    policies = {policy["name"]: policy for policy in found["policies"]}
    # two files at least and 1 GiB are the defaults, and tried already
    assert list(policies) == [
        "no compaction",
        "configured",
        "min_input_files=2 target_file_max=512MiB",
        "min_input_files=8 target_file_max=512MiB",
        "min_input_files=8 target_file_max=1GiB",
    ]
    assert (found["commits"], found["rewrites"]) == (216, 1)
    none, often, seldom = (policies[name] for name in list(policies)[:2] + list(policies)[-1:])
    assert none["final"] == {"files": 240, "small_files": 240, "bytes": 240 * 8 * MIB}
    assert (none["plans"], none["write_amplification"]) == (0, 1.0)
    assert often["rewritten_bytes"] > 2 * seldom["rewritten_bytes"] > 0
    assert often["files"] < seldom["files"] < none["files"]
    assert often["final"]["bytes"] == seldom["final"]["bytes"] == none["final"]["bytes"]
    assert len(none["by_day"]) == 9
    assert none["by_day"][-1]["files"] == 240
    take = found["recommended"]
    assert take["name"] in policies
    assert take["toml"].startswith('[[tables]]\nmatch = "t"\nmin_input_files = 8')


def test_the_command_shows_a_line_for_each_policy_and_lines_to_paste(here):
    code, text, _ = here("tables", "replay", "t", "--days", "9", *GRID)
    assert code == 0
    assert "t: 216 commits of writers from " in text
    assert "no compaction " in text
    assert "\nrecommended: min_input_files=8 " in text
    assert text.endswith('[[tables]]\nmatch = "t"\nmin_input_files = 8\ntarget_file_max = "512MiB"\n') or text.endswith(
        '[[tables]]\nmatch = "t"\nmin_input_files = 8\ntarget_file_max = "1GiB"\n'
    )


def test_a_recommendation_can_be_pasted(here, home):
    _, out, _ = here("tables", "replay", "t", "--days", "9", *GRID, "--json")
    toml = json.loads(out)["recommended"]["toml"]
    with (home / "lakefold.toml").open("a") as file:
        file.write(f"\n{toml}\n")
    code, out, _ = here("config", "show", "t", "--json")
    assert code == 0
    shown = {entry["setting"]: entry["value"] for entry in map(json.loads, out.splitlines())}
    assert shown["min_input_files"] == 8


def test_over_http_it_is_the_same_document(here, home):
    context = context_at(home, rules=RULES)
    with client_of(context, add_token(context.store, "read")) as client:
        answer = client.get("/v1/tables/t/replay", params={"days": 9, "set": ["min_input_files=2,8"]})
        many = client.get(
            "/v1/tables/t/replay", params={"set": [f"min_input_files={','.join(map(str, range(2, 40)))}"]}
        )
    context.store.close()
    assert answer.status_code == 200
    assert [policy["name"] for policy in answer.json()["policies"]][2:] == ["min_input_files=8"]
    _, out, _ = here("tables", "replay", "t", "--days", "9", "--set", "min_input_files=2,8", "--json")
    assert answer.json()["policies"][0]["final"] == json.loads(out)["policies"][0]["final"]
    assert (many.status_code, many.json()["type"]) == (422, "/docs/problems.md#setting")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--set", "frobs=3"), 2, "frobs is not a setting"),
        (("--set", "min_input_files"), 2, "'min_input_files' is not KEY=VALUE,VALUE"),
        (("--set", "lease=30s"), 2, "lease has one value for all tables"),
        (("--days", "400"), 2, "--days 400 is not between 0 and 366"),
        (("--days", "1e12"), 2, "--days 1e+12 is not between 0 and 366"),
        (("--days", "0.02"), 1, "t: nothing was written in the last 0.02 days"),
        (("--set", f"min_input_files={','.join(map(str, range(2, 30)))}"), 2, "28 combinations of settings are more"),
    ],
)
def test_an_impossible_replay_is_one_line_and_an_exit_code(words, code, says, here):
    found = here("tables", "replay", "t", *words)
    assert found[0] == code
    assert says in found[2]


def test_advice_names_the_writes_that_made_small_files_and_the_setting_to_change(scattered, tmp_path):
    code, out, _ = scattered("tables", "advise", "t", "--days", "4", "--json")
    assert code == 0
    found = json.loads(out)
    (source,) = found["sources"]
    assert (source["operation"], source["application"]) == ("bulk_insert", "Hudi Streamer")
    assert (source["commits"], source["files"], source["small_files"]) == (96, 768, 768)
    assert sum(source["by_hour"]) == 768
    fewer_tasks, inserts = found["trials"]
    assert (fewer_tasks["setting"], fewer_tasks["value"]) == ("hoodie.bulkinsert.shuffle.parallelism", "1")
    assert fewer_tasks["monthly_savings"]["files"] == pytest.approx((768 - 96) * 365.25 / 12 / 4, rel=0.01)
    assert fewer_tasks["writer_bytes"] == pytest.approx(0, abs=MIB)
    assert (inserts["setting"], inserts["value"]) == ("hoodie.datasource.write.operation", "insert")
    assert inserts["writer_bytes"] > 0
    change = found["recommended_change"]
    assert change == max((fewer_tasks, inserts), key=lambda trial: trial["monthly_savings"]["cpu_hours"])
    assert change["monthly_savings"]["cpu_hours"] > 0
    code, text, _ = scattered("tables", "advise", "t", "--days", "4")
    assert code == 0
    assert re.search(r"bulk_insert +Hudi Streamer +96 +768 +100 % +2.0 MiB +00, 01, 02$", text, re.MULTILINE)
    assert f"set {change['setting']} = {change['value']} at the writer: each month it would make" in text
    context = context_at(tmp_path, rules=RULES)
    with client_of(context, add_token(context.store, "read")) as client:
        answer = client.get("/v1/tables/t/advice", params={"days": 4})
    context.store.close()
    assert answer.status_code == 200
    assert answer.json()["recommended_change"]["setting"] == change["setting"]


def test_seconds_of_history_are_shown_as_they_are_and_not_as_months(tmp_path, run):
    now, table = _now(), Written(tmp_path / "lake/t", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    for number in range(12):
        files = {f"dt=0/f-{number}-{part}": 2 * MIB for part in range(8)}
        table.commit(now - timedelta(seconds=40 - 2 * number), files, "BULK_INSERT")
    context = context_at(tmp_path, rules=RULES)
    context.store.register_table(TableRef(name="t", format="hudi", location=str(tmp_path / "lake/t")), "compact")
    try:
        code, text, notes = run("tables", "advise", "t")
        assert (code, "a month" in text, "each month" in text) == (0, False, False), text
        why = r"only [\dms. ]+ of history are known: the figures are totals, since rates need 3 days"
        assert re.search(why, notes), notes
        found = json.loads(run("tables", "advise", "t", "--json")[1])
        assert (found["rewritten_bytes_per_month"], found["cpu_hours_per_month"]) == (None, None)
        for trial in found["trials"]:
            assert trial["monthly_savings"] is None
            assert trial["savings"]["files"] <= 96
        code, text, notes = run("tables", "replay", "t")
        assert (code, "A DAY" in text, "per day" in text) == (0, False, False), text
        assert re.search(why, notes), notes
        policies = json.loads(run("tables", "replay", "t", "--json")[1])["policies"]
        assert {policy["rewritten_bytes_per_day"] for policy in policies} == {None}
        with client_of(context) as client:
            page = client.get("/replay", params={"table": "t"}).text
        words = " ".join(re.sub(r"<[^>]+>", "", page).split())
        assert re.search(r"12 commits of writers in [\dms. ]+; files", words), words
        assert "a day" not in page
        assert "each month" not in page
    finally:
        context.store.close()


def test_advice_that_takes_too_long_is_refused_as_a_replay_is(scattered, tmp_path, monkeypatch):
    monkeypatch.setattr("service.server.api.replay._MAX_SECONDS", 0.0)
    context = context_at(tmp_path, rules=RULES)
    with client_of(context, add_token(context.store, "read")) as client:
        answers = [client.get(f"/v1/tables/t/{what}", params={"days": 4}) for what in ("advice", "replay")]
    context.store.close()
    assert [answer.status_code for answer in answers] == [422, 422]
    for answer in answers:
        assert answer.json()["detail"] == "it took longer than 0 s; ask for fewer days or settings, or leave out --url"


def test_a_page_shows_the_replay_where_there_is_no_time_left_for_advice(here, home, monkeypatch):
    def no_time(*_: object, **__: object) -> None:
        raise ReplayTimeout(BAD_SETTING, "it took longer than 15 s")

    monkeypatch.setattr("service.server.web.replay.advise_table", no_time)
    context = context_at(home, rules=RULES)
    with client_of(context) as client:
        answer = client.get("/replay", params={"table": "t", "days": 9})
    context.store.close()
    assert '<path class="none" d="M' in answer.text
    assert "At the writer" not in answer.text


def test_a_limit_ends_a_history_and_a_replay_within_them(here, home):
    calls = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 100:
            raise ReplayTimeout(BAD_SETTING, "enough")

    ref, now = TableRef(name="t", format="hudi", location=str(home / "lake/t")), _now()
    with pytest.raises(ReplayTimeout):
        HudiFormat().history(ref, now - timedelta(days=9), now, (), check)
    script = writer_history(HudiFormat().history(ref, now - timedelta(days=9), now, ()))
    calls.clear()
    with pytest.raises(ReplayTimeout):
        replay_policy(script, None, small_file_limit_bytes=MIB, check=check)


def test_advice_states_that_no_change_is_worthwhile(tmp_path, run):
    now, table = _now(), Written(tmp_path / "lake/t", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    for hour in range(24):
        table.commit(now - timedelta(hours=23.5 - hour), {f"dt=1/f-{hour}": 400 * MIB})
    context_at(tmp_path, rules=RULES).store.close()
    code, out, _ = run("tables", "advise", "t", "--days", "1")
    assert code == 0
    assert out.endswith("writers made no small file; there is nothing to change\n")
    for hour in range(2):  # two of them are no reason to change anything
        table.commit(now - timedelta(minutes=20 - hour), {f"dt=2/s-{hour}": MIB})
    _, out, _ = run("tables", "advise", "t", "--days", "1", "--json")
    found = json.loads(out)
    assert found["sources"][0]["small_files"] == 2
    assert found["recommended_change"] is None
    assert found["text"].startswith("nothing is worth changing at the writer (hoodie.parquet.small.file.limit = ")


def test_the_page_draws_a_line_for_each_policy_and_has_lines_to_paste(here, home):
    context = context_at(home, rules=RULES)
    with client_of(context) as client:
        answer = client.get("/replay", params={"table": "t", "days": 9, "set": ["min_input_files=2,8", ""]})
        wrong = client.get("/replay", params={"table": "t", "set": "<b>frobs</b>=3"})
        none = client.get("/replay", params={"table": "nobody"})
    context.store.close()
    assert answer.status_code == 200
    drawn = re.findall(r'<path class="(\w+)" d="M', answer.text)
    assert drawn == ["recommended", "none", "configured"] * 2, "for wide and narrow pages, what is configured on top"
    assert "<title>no compaction: 240 files at the end" in answer.text
    assert "min_input_files = 8" in answer.text
    assert "At the writer" in answer.text
    words = " ".join(re.sub(r"<[^>]+>", "", answer.text).split())
    assert "lakefold tables replay t --days 9 --set" in words
    assert wrong.status_code == 200
    assert "&lt;b&gt;frobs" in wrong.text
    assert "is not a setting" in wrong.text.replace("<wbr>", "")
    assert none.status_code == 404
