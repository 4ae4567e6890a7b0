# SPDX-License-Identifier: Apache-2.0
"""The cache of jars: filled by one process at a time, read by all processes, and never blocked."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import suspend

from executors import jars
from executors.jars import settings_with_jars
from lake.errors import Transient

#: seconds of waiting that no test here needs
UNHEARD_OF = 60.0
HOLD = """
import sys
from executors.jars import settings_with_jars
with settings_with_jars({"spark.jars.packages": "a:b:1", "spark.jars.ivy": sys.argv[1]}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    return {"spark.jars.packages": "a:b:1", "spark.jars.ivy": str(tmp_path / "ivy"), "spark.jars": "/own.jar"}


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that was stopped while it fills the cache."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "ivy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        suspend(process.pid)
        yield process
        process.kill()


def fetch(place: Path, name: str = "a_b-1.jar") -> str:
    """What Spark does with a cache and tells afterwards."""
    (place / "jars").mkdir(parents=True, exist_ok=True)
    (place / "jars" / name).write_bytes(b"classes")
    return f"file://{place}/jars/{name}"


def fill(conf: dict[str, str]) -> None:
    with settings_with_jars(conf) as (chosen, found):
        found(f"/own.jar,{fetch(Path(chosen['spark.jars.ivy']))}")


def test_a_cache_that_has_everything_is_named_file_by_file(conf: dict[str, str], tmp_path: Path) -> None:
    with settings_with_jars(conf) as (chosen, found):
        assert chosen == conf
        found(f"/own.jar,{fetch(tmp_path / 'ivy')}")
    with settings_with_jars(conf) as (chosen, _):
        assert chosen == {
            "spark.jars.ivy": conf["spark.jars.ivy"],
            "spark.jars": f"/own.jar,{tmp_path}/ivy/jars/a_b-1.jar",
        }


@pytest.mark.parametrize("spoil", ["gone", "cut", "others"])
def test_a_cache_that_lost_something_or_has_other_packages_is_filled_again(
    conf: dict[str, str], tmp_path: Path, spoil: str
) -> None:
    fill(conf)
    jar = tmp_path / "ivy/jars/a_b-1.jar"
    if spoil == "gone":
        jar.unlink()
    elif spoil == "cut":
        jar.write_bytes(b"cla")
    else:
        conf = conf | {"spark.jars.packages": "a:b:2"}
    with settings_with_jars(conf) as (chosen, _):
        assert chosen == conf


def test_versions_that_change_are_read_each_time(conf: dict[str, str]) -> None:
    conf["spark.jars.packages"] = "a:b:1-SNAPSHOT"
    fill(conf)
    with settings_with_jars(conf) as (chosen, _):
        assert chosen == conf


def test_processes_that_start_at_once_fill_the_cache_one_after_the_other(conf: dict[str, str], tmp_path: Path) -> None:
    go_on, inside = threading.Event(), []

    def hold() -> None:
        with settings_with_jars(conf) as (chosen, found):
            inside.append("fills")
            go_on.wait(10)
            found(fetch(Path(chosen["spark.jars.ivy"])))

    def follow() -> None:
        with settings_with_jars(conf) as (chosen, _):
            inside.append("fills" if "spark.jars.packages" in chosen else "reads")

    first, second = threading.Thread(target=hold), threading.Thread(target=follow)
    first.start()
    while not inside:
        time.sleep(0.01)
    second.start()
    second.join(0.3)
    assert inside == ["fills"]
    go_on.set()
    second.join(10)
    first.join(10)
    assert inside == ["fills", "reads"]


@pytest.mark.slow
@pytest.mark.parametrize("complete", [True, False])
def test_a_process_stopped_while_it_holds_the_cache_delays_no_other_process(
    conf: dict[str, str], tmp_path: Path, stopped: "subprocess.Popen[str]", complete: bool, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(jars, "LOCK_TIMEOUT_SECONDS", UNHEARD_OF if complete else 0.5)
    if complete:
        jars._write_manifest(tmp_path / "ivy", conf, fetch(tmp_path / "ivy"))
    began = time.monotonic()
    with settings_with_jars(conf) as (chosen, found):
        found(fetch(Path(chosen["spark.jars.ivy"])))
    if complete:
        assert time.monotonic() - began < UNHEARD_OF
        assert chosen["spark.jars"].endswith(f",{tmp_path}/ivy/jars/a_b-1.jar")
        return
    assert chosen == conf | {"spark.jars.ivy": f"{tmp_path}/ivy.2"}
    told = f"{tmp_path}/ivy is being filled by process {stopped.pid} on {os.uname().nodename} since "
    assert any(told in message for message in caplog.messages)
    monkeypatch.setattr(jars, "LOCK_TIMEOUT_SECONDS", UNHEARD_OF)
    began = time.monotonic()
    with settings_with_jars(conf) as (chosen, _):
        assert chosen["spark.jars"].endswith(f",{tmp_path}/ivy.2/jars/a_b-1.jar")
    assert time.monotonic() - began < UNHEARD_OF, "what the second cache has need not be waited for in the first"


@pytest.mark.slow
def test_a_start_with_both_caches_held_fails_in_time_and_names_the_holder(
    conf: dict[str, str], tmp_path: Path, stopped: "subprocess.Popen[str]", monkeypatch
) -> None:
    monkeypatch.setattr(jars, "LOCK_TIMEOUT_SECONDS", 0.3)
    with (
        settings_with_jars(conf),
        pytest.raises(Transient, match=rf"ivy is being filled by process {stopped.pid} on .*ivy.2 is being filled by"),
        settings_with_jars(conf),
    ):
        pass
