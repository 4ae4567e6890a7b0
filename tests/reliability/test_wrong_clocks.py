# SPDX-License-Identifier: Apache-2.0
"""The wrong clocks of chaos are wrong, and a process that has one works."""

import json
import os
import subprocess
import sys
import time

import pytest
from chaos.clocks import INSTALL, Clock, library
from support import needs_server

_PROCESS = """
import json, os, pathlib, sys, threading, time
begun = time.monotonic()
time.sleep(0.2)
threading.Event().wait(0.2)
file = pathlib.Path(sys.argv[1])
file.touch()
took, touched = time.monotonic() - begun, file.stat().st_mtime
print(json.dumps({"now": time.time(), "took": took, "file": touched, "zone": time.tzname[0]}))
"""


@pytest.mark.parametrize("seconds", [90, -90, 32_400, -32_400])
def test_a_process_with_a_wrong_clock_can_sleep_and_its_files_have_the_true_time(tmp_path, seconds):
    if library() is None:
        needs_server(INSTALL)
    clock = Clock(seconds=seconds, zone="Asia/Tokyo")
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, str(tmp_path / "file")],
        env={**os.environ, **clock.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert abs(found["now"] - time.time() - seconds) < 30
    assert abs(found["file"] - time.time()) < 30
    assert 0.4 <= found["took"] < 30
    assert found["zone"] == "JST"
