# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL that no longer answers: every call ends, and the renewal of a lease waits for no other call."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import postgres
import pytest
from sqlalchemy import make_url, text
from store_plans import add, claimed
from waiting import suspend

from service.control.store import DatabaseUnreachable, Store, database

pytestmark = pytest.mark.slow

#: forwards a port to one of the loopback; stopped, it still has a kernel that acknowledges what is sent to it
PROXY = """
import socket, sys, threading
def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
server = socket.create_server((sys.argv[2], 0))
print(server.getsockname()[1], flush=True)
while True:
    here = server.accept()[0]
    there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for pair in ((here, there), (there, here)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""
#: a server with a network of its own, which forwards from 10.9.9.2 as soon as it has that address
SERVER = """
import sys, subprocess
import postgres
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with postgres.server() as url:
    print(postgres.new_database(url, "lakefold"), flush=True)
    sys.stdin.readline()
    sys.argv[1:] = [sys.stdin.readline(), "10.9.9.2"]
    exec(sys.stdin.read())
"""
#: the other end of its cable. What is sent after the address was taken away arrives, and nobody answers
VANISHES = """
import subprocess, sys, time
import postgres
from sqlalchemy import make_url
from service.control.store import DatabaseUnreachable, Store

def run(command):
    subprocess.run(command.split(), check=True)

server = subprocess.Popen(["unshare", "--net", sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, preexec_fn=postgres._end_with_parent)
url = make_url(server.stdout.readline().strip())
there = f"nsenter --target {server.pid} --net ip"
run(f"ip link add here type veth peer name there netns {server.pid}")
run("ip address add 10.9.9.1/24 dev here")
run("ip link set here up")
run(f"{there} address add 10.9.9.2/24 dev there")
run(f"{there} link set there address 02:00:00:00:00:02 up")
run("ip neighbour replace 10.9.9.2 lladdr 02:00:00:00:00:02 dev here")
server.stdin.write(f"\\n{url.port}\\n{sys.argv[2]}")
server.stdin.close()
port = int(server.stdout.readline())
store = Store(url.set(host="10.9.9.2", port=port).render_as_string(hide_password=False))
store.upgrade()
store.leaders()
run(f"{there} address del 10.9.9.2/24 dev there")
began = time.monotonic()
try:
    store.leaders()
except DatabaseUnreachable as error:
    print("ended", time.monotonic() - began < 30, error, flush=True)
run(f"{there} address add 10.9.9.2/24 dev there")
store.leaders()
print("goes on", flush=True)
server.send_signal(2)
server.wait()
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of seconds, in the same order as the real ones."""
    monkeypatch.setattr(
        database, "DEFAULT_TIMEOUTS", replace(database.DEFAULT_TIMEOUTS, connect_seconds=2, response_seconds=4.0)
    )
    monkeypatch.setattr(
        database, "HEARTBEAT_TIMEOUTS", replace(database.HEARTBEAT_TIMEOUTS, connect_seconds=2, response_seconds=1.0)
    )


@pytest.fixture
def url(postgres_url: str, postgres_template: str) -> Iterator[str]:
    name = f"lakefold_silent_{os.getpid()}"
    yield postgres.new_database(postgres_url, name, postgres_template)
    postgres.drop_database(postgres_url, name)


@pytest.fixture
def proxy(url: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A process between us and the database, and the database's URL by way of it."""
    there = make_url(url)
    command = [sys.executable, "-c", PROXY, str(there.port), "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield process, there.set(port=port).render_as_string(hide_password=False)
        process.kill()


@pytest.mark.usefixtures("short")
def test_calls_to_a_server_that_falls_silent_end_and_a_lease_waits_for_none_of_them(
    proxy: "tuple[subprocess.Popen[str], str]",
) -> None:
    process, url = proxy
    store = Store(url)
    plan = add(store)
    claim = claimed(store)
    assert claim.plan.plan_id == plan.plan_id
    seconds: dict[str, float] = {}

    def call(name: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        with pytest.raises(DatabaseUnreachable, match=r"no answer within|timeout expired|connection became free"):
            work()
        seconds[name] = time.monotonic() - began

    store.leaders()
    suspend(process.pid)
    # More than the pool has connections for.
    hung = [threading.Thread(target=call, args=(f"read {n}", store.leaders)) for n in range(20)]
    for thread in hung:
        thread.start()
    time.sleep(0.5)
    call("heartbeat", lambda: store.heartbeat(claim))
    call("leader", lambda: store.acquire_leader("scan", "me", store._settings.lease))
    assert seconds["heartbeat"] < 4
    assert seconds["leader"] < 4
    for thread in hung:
        thread.join(60)
        assert not thread.is_alive()
    process.send_signal(signal.SIGCONT)
    assert store.heartbeat(claim) is False, "nothing of it has to be started anew"
    assert store.leaders() == []
    store.close()


@pytest.mark.shown_by(
    "tests/store/test_store_unresponsive.py::test_calls_to_a_server_that_falls_silent_end_and_a_lease_waits_for_none_of_them"
)
def test_a_host_that_vanishes_from_the_network_is_noticed_in_seconds(tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0:
        pytest.skip("needs a network namespace of its own, which only root can make here")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}"}
    command = ["unshare", "--net", sys.executable, "-c", VANISHES, SERVER, PROXY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    ended, goes_on = done.stdout.strip().splitlines() or ("", "")
    assert ended.startswith("ended True database "), done.stdout + done.stderr[-2000:]
    assert goes_on == "goes on"


def test_a_statement_that_takes_too_long_is_ended_by_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "DEFAULT_TIMEOUTS", replace(database.DEFAULT_TIMEOUTS, statement_seconds=1))
    store = Store(url)
    with pytest.raises(DatabaseUnreachable, match="statement timeout"), store._database.read() as connection:
        connection.execute(text("SELECT pg_sleep(60)"))
    store.close()


def test_a_migration_may_take_longer_than_a_call(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        database, "DEFAULT_TIMEOUTS", replace(database.DEFAULT_TIMEOUTS, statement_seconds=1, response_seconds=1.0)
    )
    store = Store(url)
    with store._database.write_without_timeout() as connection:
        connection.execute(text("SELECT pg_sleep(2)"))
    store.close()


def test_two_tries_to_renew_a_lease_end_before_it_does() -> None:
    lease, heartbeat = 60, 15
    sqlite = 2 * database.LOCK_WAIT_SECONDS
    postgresql = database.HEARTBEAT_TIMEOUTS.connect_seconds + database.HEARTBEAT_TIMEOUTS.response_seconds
    assert heartbeat + 2 * postgresql < lease
    assert heartbeat + sqlite < lease
