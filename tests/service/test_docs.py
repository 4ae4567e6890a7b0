# SPDX-License-Identifier: Apache-2.0
"""Every command that the pages show is run as it stands there, page after page, or says why it is not."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import stop_group
from hudi_tables import copy, small_files
from kept_tables import kept
from pages import ROOT, Block, blocks_of, missing_line
from support import free_port
from waiting import wait_for

from lake.plan import LIVE_STATES
from service.control.store import Store

BIN = Path(sys.executable).parent
#: pages with a test of their own; of the runbook it runs what clears the alerts that can be provoked, and checks that
#: every other command and option exists
_ELSEWHERE = {"runbook.md": "tests/service/test_prometheus.py", "writers.md": "tests/service/test_writers_page.py"}
#: the quick start makes what the other pages go on with
PAGES = [
    ROOT / "docs" / "quickstart.md",
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in _ELSEWHERE),
    ROOT / "deploy" / "README.md",
]
_WHY = re.compile(r"not run here: \S.*")


def blocks() -> list[Block]:
    return [block for page in dict.fromkeys(PAGES) for block in blocks_of(page)]


def test_a_block_that_is_not_run_has_its_reason():
    for block in blocks():
        assert block.why is None or _WHY.fullmatch(block.why), f"{block}: {block.why}"


def test_every_test_that_a_reason_names_exists():
    for block in blocks():
        for path in re.findall(r"tests/[\w/]+\.py", block.why or ""):
            assert (ROOT / path).is_file(), f"{block}: {path}"
    for path in _ELSEWHERE.values():
        assert (ROOT / path).is_file(), path


def test_pages_show_no_command_in_another_kind_of_block():
    for page in dict.fromkeys(PAGES):
        for fence in re.findall(r"^```(\w*)\n(?:\$ )?(?:sudo |uv |curl |lakefold )", page.read_text(), re.MULTILINE):
            assert fence in ("sh", "text"), f"{page.relative_to(ROOT)}: commands in a ```{fence} block"


class Reader:
    """A user who follows the pages in an own directory, on a lake with one table of small files."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.home = home
        self.daemon: subprocess.Popen[bytes] | None = None
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LAKEFOLD_")}
        self.environment = kept | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "USER": "ada",
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "LAKEFOLD_HTTP__PORT": str(self.port),
            # small and fast is all that a reader's lake would have otherwise
            "LAKEFOLD_DEFAULTS__QUIET_PERIOD": "0s",
            "LAKEFOLD_SPARK__MASTER": "local[2]",
            "NO_COLOR": "1",
        }
        if cache := os.environ.get("LAKEFOLD_CACHE"):
            self.environment["LAKEFOLD_CACHE"] = cache

    def run(self, block: Block) -> None:
        """Run a block to its end; one that ends with ``lakefold serve`` until the daemon is ready."""
        text = block.text.replace("127.0.0.1:9464", f"127.0.0.1:{self.port}")
        self.settle()
        environment = dict(self.environment)
        if "$LAKEFOLD_URL" in text:
            environment |= {"LAKEFOLD_URL": self.url, "LAKEFOLD_TOKEN": (self.home / "token").read_text().strip()}
            environment["PLAN"] = json.loads(self.lakefold("plans", "list", "--json", "--limit", "1"))["plan_id"]
        *before, last = text.rstrip().splitlines()
        serves = re.fullmatch(r"lakefold serve\s*(#.*)?", last) is not None
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(before) if serves else text],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{block} exited {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        if block.shown is not None:
            missing = missing_line(block.shown, done.stdout + done.stderr)
            assert missing is None, f"{block} does not print {missing!r}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        if serves and self.daemon is None:
            self.serve()

    @property
    def url(self) -> str:
        """Where the daemon serves."""
        return f"http://127.0.0.1:{self.port}"

    def lakefold(self, *arguments: str) -> str:
        """What a command prints."""
        command = [BIN / "lakefold", *arguments]
        return subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def settle(self) -> None:
        """Wait, as a reader would, until no request is unanswered and no plan is waiting or running."""
        store = Store(f"sqlite:///{self.home / 'data' / 'lakefold' / 'lakefold.db'}")

        def settled() -> bool:
            # In this order: whatever plans a request leads to are stored before its answer.
            if store.open_requests():
                return False
            return not any(store.plans(state=state) for state in LIVE_STATES)

        if self.daemon is not None:
            wait_for(settled, "the requests answered, the plans taken and done", 120)

    def serve(self) -> None:
        log = self.home / "serve.log"
        with log.open("ab") as sink:
            self.daemon = subprocess.Popen(
                [BIN / "lakefold", "serve"],
                cwd=self.home,
                env=self.environment,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        ready = ["curl", "-sf", f"{self.url}/-/ready"]
        wait_for(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "the daemon", 120)


@pytest.fixture(scope="module")
def reader(spark, tmp_path_factory) -> Iterator[Reader]:
    home = tmp_path_factory.mktemp("reader")
    orders = kept("docs", "orders", lambda base: small_files(spark, base, commits=2, partitions=2), __file__)
    copy(orders, home / "lake" / "sales" / "orders")
    reader = Reader(home)
    yield reader
    if reader.daemon is not None:
        stop_group(reader.daemon)


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_commands_on_the_pages_work_as_written(reader):
    for block in blocks():
        if block.why is None:
            reader.run(block)
    assert reader.daemon is not None
    assert reader.daemon.poll() is None, "the daemon ended on the way"
