# SPDX-License-Identifier: Apache-2.0
"""The process's one session: what is known of it without asking its JVM."""

import subprocess

from executors import sessions
from executors.sessions import Sessions


def test_a_jvm_that_has_ended_is_known_at_once_and_another_is_started(monkeypatch):
    jvms = []

    def start():
        jvms.append(subprocess.Popen(["sleep", "60"]))
        return object()

    monkeypatch.setattr(sessions, "jvm_process", lambda: jvms[-1])
    found = Sessions(start)
    try:
        assert (found.state, found.broken) == ("none", None)
        found()
        assert (found.state, found.broken, found.usable()) == ("running", None, True)
        jvms[-1].kill()
        jvms[-1].wait()
        assert (found.state, found.broken) == ("broken", "the JVM of Spark has ended; another one is started")
        assert found.usable()
        assert (found.state, found.broken, len(jvms)) == ("running", None, 2)
    finally:
        for jvm in jvms:
            jvm.kill()
            jvm.wait()
