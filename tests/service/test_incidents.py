# SPDX-License-Identifier: Apache-2.0
"""Ten incidents at three in the morning, each found and cleared from the page alone or from the commands alone.

The executor is a process of its own; scheduler and API run in this one. Whoever is on call reads what ``lakefold
status`` or the first page says, and does what stands there; nothing else tells them where to go.
"""

import base64
import html
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_toys import add_token
from daemon_toys import known, running
from installation import Lakefold
from receiver import receiving
from toys.files import rows
from toys.timeline import ToyFormat
from toys.timeline_tables import write
from waiting import wait_for

from lake.model import TableRef
from lake.plan import PlanState
from service.control.config.loader import load_config
from service.problems import ExitCode
from service.server.daemon.process import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.crossed]

#: a budget that is smaller than any group of files
TIGHT = '\n[[tables]]\nmatch = "tight.*"\nbudget_bytes_per_hour = "1KiB"\n'
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Terminal:
    """A person with a terminal, who reads ``lakefold status`` and types the printed commands."""

    def __init__(self, lakefold: Lakefold) -> None:
        self._lakefold = lakefold

    def see(self) -> str:
        return self.run("lakefold status")

    def run(self, line: str, expected: int = 0) -> str:
        code, said = self._lakefold.run(line, {})
        assert code == expected, said
        return said

    def opens(self, *, command: str, link: str) -> str:
        """What follows on the first look."""
        return self.run(command)

    def does(self, *, command: str, action: str, page: str = "/") -> None:
        """What ends it."""
        self.run(command)


class Visitor:
    """A person with a browser, signed in, who reads the first page, follows its links and presses its buttons."""

    def __init__(self, address: str, token: str) -> None:
        self._client = httpx.Client(base_url=address, headers={"Sec-Fetch-Site": "same-origin"})
        self._page = ""
        wait_for(lambda: self._signs_in(token), "the new token works", 30, every=0.3)

    def _signs_in(self, token: str) -> bool:
        return self._client.post("/login", data={"token": token}).status_code == 303

    def see(self) -> str:
        return self._get("/")

    def problem(self) -> str:
        """The text of the first page while it can't be shown."""
        answer = self._client.get("/", headers={"Accept": "text/html"})
        assert answer.status_code == 503
        return answer.text

    def _get(self, path: str) -> str:
        answer = self._client.get(path)
        assert answer.status_code == 200, answer.text
        self._page = answer.text
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", self._page)))

    def opens(self, *, command: str, link: str) -> str:
        self.see()
        assert link in html.unescape(self._page), f"no link to {link}"
        return self._get(link)

    def follows(self, part: str) -> str:
        """The page behind the first link of this page whose address has ``part``."""
        links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', self._page)]
        return self._get(next(link for link in links if part in link))

    def does(self, *, command: str, action: str, page: str = "/") -> None:
        self._get(page)
        assert f'action="{action}"' in html.unescape(self._page), f"no button for {action}"
        answer = self._client.post(action)
        assert answer.status_code == 303, answer.text


@pytest.fixture(scope="module")
def hook() -> Iterator[object]:
    """Who is told by webhook."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def lakefold(tmp_path_factory: pytest.TempPathFactory, hook) -> Iterator[Lakefold]:
    """An installation without tables: a scheduler, an API and an executor."""
    notify = {"webhook_url": f"{hook.url}/hook", "webhook_secret": SECRET, "events": ["table.paused"]}
    settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in notify.items())
    lakefold = Lakefold(tmp_path_factory.mktemp("incidents"), more=f"[notify]\n{settings}{TIGHT}")
    with known(ToyFormat()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEFOLD_CONFIG", str(lakefold.config))
        patch.setenv("PATH", lakefold.path)
        scheduler = load_config(lakefold.config)
        patch.setenv("LAKEFOLD_HTTP__PORT", str(lakefold.ports["all"]))
        api = load_config(lakefold.config)
        patch.delenv("LAKEFOLD_HTTP__PORT")
        try:
            with running(Daemon(scheduler, "scheduler")) as one, running(Daemon(api, "api")) as other:
                lakefold.daemons = [one, other]
                lakefold.serve("lakefold serve --role executor")
                yield lakefold
        finally:
            lakefold.end()


@pytest.fixture(params=["terminal", "page"])
def person(request, lakefold: Lakefold, tmp_path: Path):
    """The person on call, with one view."""
    if request.param == "terminal":
        yield Terminal(lakefold)
    else:
        yield Visitor(
            f"http://127.0.0.1:{lakefold.ports['all']}", add_token(lakefold.store, "write", name=tmp_path.name)
        )


def found(person: Terminal | Visitor, pattern: str) -> str:
    """What is seen once ``pattern`` is part of it."""

    seen = ""

    def look() -> str | None:
        nonlocal seen
        seen = person.see()
        return seen if re.search(pattern, seen) else None

    return wait_for(look, lambda: f"{pattern!r} is said, but\n{seen}", 60, every=0.3)


def reloaded(lakefold: Lakefold) -> None:
    """Have each process load the configuration."""
    lakefold.processes["executor"].send_signal(signal.SIGHUP)
    for daemon in lakefold.daemons:
        daemon.reload()


def gone(person: Terminal | Visitor, text: str) -> None:
    wait_for(lambda: text not in person.see(), f"{text!r} is no longer said", 60, every=0.3)


def test_an_executor_that_is_gone_is_named_and_another_one_takes_its_plan(lakefold: Lakefold, person) -> None:
    table = f"gone.{type(person).__name__}"
    folder = lakefold.table(table, "wait")
    wait_for(lambda: lakefold.plans(PlanState.INFLIGHT, table), "begun")
    lakefold.processes["executor"].kill()
    lakefold.processes["executor"].wait()
    seen = found(person, "no executor is running")
    (folder / "wait").unlink()
    processes = person.opens(command="lakefold status", link="/processes")
    assert "silent" in processes
    assert "lakefold worker" in seen + processes
    lakefold.serve("lakefold serve --role executor")
    gone(person, "no executor is running")
    wait_for(lambda: lakefold.completed(table), "compacted after all")


def test_writers_that_cancel_consecutive_plans_are_reported_until_a_plan_commits(lakefold: Lakefold, person) -> None:
    table = f"contested.{type(person).__name__}"
    folder = lakefold.table(table, "contested")
    found(person, rf"{table}\W.*cancelled [345] of its [345] newest plans")
    look = person.opens(
        command=f"lakefold plans list --table {table} --state cancelled",
        link=f"/plans?table={table}&state=cancelled",
    )
    assert "cancelled" in look
    said = person.opens(command=f"lakefold config show {table}", link="/docs/runbook.md#commitconflictshigh")
    assert "quiet_period" in said
    (folder / "contested").unlink()
    ref = TableRef(name=table, format="toy", location=str(folder))

    def is_over() -> bool:
        """The writers go on, and leave what is rewritten alone."""
        if not lakefold.live_plans(table):
            for _ in range(2):
                write(ref, "dt=0", rows(10_000, 10_010))
        return "newest plans" not in person.see()

    wait_for(is_over, "more plans get through", 60, every=0.3)


def test_the_page_of_a_halted_table_links_its_plan_and_resumes_it(lakefold: Lakefold, person) -> None:
    table = f"spoilt.{type(person).__name__}"
    folder = lakefold.table(table, "spoiled")
    found(person, f"{table} was halted")
    (plan,) = lakefold.plans(PlanState.FAILED, table)
    look = person.opens(command=f"lakefold plans show {plan}", link=f"/plans/{plan}")
    assert "rows" in look
    (folder / "spoiled").unlink()
    person.opens(command=f"lakefold verify {table} --rows", link=f"/tables/{table}")
    page = f"/tables/{table}"
    person.does(command=f"lakefold resume {table} --yes", page=page, action=f"{page}/resume")
    gone(person, f"{table} was halted")
    wait_for(lambda: lakefold.completed(table), "compacted after all")


def test_messages_that_a_dead_webhook_refused_are_sent_again(lakefold: Lakefold, person, hook) -> None:
    table = f"told.{type(person).__name__}"
    lakefold.table(table)
    wait_for(lambda: lakefold.completed(table), "compacted")
    hook.answer = lambda request: (410, {})
    lakefold.run(f"lakefold pause {table}", {})
    found(person, "1 notification could not be delivered")
    look = person.opens(command="lakefold notifications list --state dead --json", link="/notifications?state=dead")
    assert "table.paused" in look
    assert "410" in look
    told = len(hook.requests)
    hook.answer = lambda request: (200, {})
    person.does(command="lakefold notifications retry --all", action="/notifications/retry")
    gone(person, "could not be delivered")
    wait_for(lambda: len(hook.requests) > told, "delivered")
    lakefold.store.resume(table, "ada")


def test_a_long_pause_is_reported_with_actor_and_reason_and_can_be_ended(lakefold: Lakefold, person) -> None:
    table = f"paused.{type(person).__name__}"
    lakefold.table(table)
    wait_for(lambda: lakefold.completed(table), "compacted")
    lakefold.store.pause(table, "ada", "the lake moves")
    found(person, rf"{table} (is|was) paused .*by ada: the lake moves")
    person.does(command=f"lakefold resume {table}", action=f"/tables/{table}/resume")
    gone(person, "the lake moves")
    assert not lakefold.store.table_state(table).paused


def test_a_plan_that_is_retried_on_a_full_disk_is_named_with_its_error_and_attempt(lakefold: Lakefold, person) -> None:
    table = f"full.{type(person).__name__}"
    folder = lakefold.table(table, "full")
    found(person, rf"{table}\W.*attempt [1-4] of 5: No space left on device; (again in|due now|its next)")
    (plan,) = lakefold.live_plans(table)
    look = person.opens(command=f"lakefold plans show {plan}", link=f"/plans/{plan}")
    assert "No space left on device" in look
    (folder / "full").unlink()
    gone(person, "No space left on device")
    wait_for(lambda: lakefold.completed(table), "compacted after all")


def test_a_table_without_its_directory_is_reported_everywhere_until_it_returns(lakefold: Lakefold, person) -> None:
    table = f"lost.{type(person).__name__}"
    folder = lakefold.table(table)
    wait_for(lambda: lakefold.completed(table), "compacted")
    away = folder.rename(lakefold.home / f"{table} away")
    seen = found(person, rf"{table} is gone: its directory {folder} does not exist")
    assert 'mode = "off"' in seen
    if isinstance(person, Terminal):
        for command in ("tables explain", "verify"):
            assert f"its directory {folder} does not exist" in person.run(f"lakefold {command} {table}", 1)
            assert f"its directory {folder} does not exist" in person.run(f"lakefold {command} {folder}", 1)
    look = person.opens(command=f"lakefold tables show {table}", link=f"/tables/{table}")
    assert f"its directory {folder} does not exist" in look
    away.rename(folder)
    gone(person, f"{table} is gone")


def test_an_edited_configuration_is_reported_until_each_process_has_loaded_it(lakefold: Lakefold, person) -> None:
    before = lakefold.config.read_text()
    lakefold.config.write_text(f"{before}\n# {type(person).__name__}\n")
    found(person, r"lakefold\.toml was edited at .* is not loaded; SIGHUP loads it")
    reloaded(lakefold)
    gone(person, "SIGHUP loads it")


def test_a_budget_that_no_group_of_files_fits_is_named_until_it_is_raised(lakefold: Lakefold, person) -> None:
    table = f"tight.{type(person).__name__}"
    lakefold.table(table)
    # A process that has not started yet would be ended by SIGHUP.
    gone(person, "no executor is running")
    found(person, rf"{table}\W.*larger than a whole budget; .*lakefold tables explain {table}")
    look = person.opens(command=f"lakefold tables explain {table}", link=f"/tables/{table}")
    if isinstance(person, Visitor):
        look = person.follows("partition=")
    assert "more than all of budget_bytes_per_hour (1.0 KiB)" in look, look
    assert not lakefold.plans(PlanState.COMPLETED, table)
    before = lakefold.config.read_text()
    lakefold.config.write_text(before.replace(TIGHT, TIGHT.replace("1KiB", "1GiB")))
    try:
        reloaded(lakefold)
        wait_for(lambda: lakefold.completed(table), "compacted after all")
        gone(person, "larger than a whole budget")
    finally:
        lakefold.config.write_text(before)
        reloaded(lakefold)


def test_a_missing_database_file_is_reported_with_the_command_that_restores_it(lakefold: Lakefold, person) -> None:
    """At the end, since all processes of the installation notice it."""
    lakefold.store.close()
    database = lakefold.home / "lakefold.db"
    away = database.rename(lakefold.home / "away.db")
    try:
        if isinstance(person, Terminal):
            seen = person.run("lakefold status", ExitCode.DATABASE)
        else:
            seen = person.problem()
            assert f"{database} is gone" in seen
        assert "restore its backup (docs/operations.md#restore)" in seen
        assert not database.exists()
    finally:
        away.rename(database)
    found(person, "files fewer")
