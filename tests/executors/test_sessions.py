# SPDX-License-Identifier: Apache-2.0
"""The process's one session: what is known of it without asking its JVM."""

import subprocess
from types import SimpleNamespace

import lake.formats
from executors import shared_session, spark
from executors.shared_session import SparkSessions
from lake.model import TableRef
from lake.ports import SessionRequirements

TABLE = TableRef(name="t", format="toy", location="/t")


def test_a_jvm_that_has_ended_is_known_at_once_and_another_is_started(monkeypatch):
    jvms = []

    def start():
        jvms.append(subprocess.Popen(["sleep", "60"]))
        return object()

    monkeypatch.setattr(shared_session, "jvm_process", lambda: jvms[-1])
    found = SparkSessions(start)
    try:
        assert (found.state, found.failure) == ("none", None)
        found()
        assert (found.state, found.failure, found.ensure_usable()) == ("running", None, True)
        jvms[-1].kill()
        jvms[-1].wait()
        assert (found.state, found.failure) == ("broken", "the JVM of Spark has ended; another one is started")
        assert found.ensure_usable()
        assert (found.state, found.failure, len(jvms)) == ("running", None, 2)
    finally:
        for jvm in jvms:
            jvm.kill()
            jvm.wait()


def test_a_session_that_lacks_a_format_of_waiting_work_ends_as_soon_as_no_plan_runs(monkeypatch):
    started, ended, busy, lacks = [], [], [True], []
    monkeypatch.setattr(shared_session, "jvm_process", lambda: None)
    monkeypatch.setattr(shared_session, "end_session", lambda: ended.append(len(started)))
    found = SparkSessions(lambda: started.append(1) or object(), missing_formats=lambda: lacks, is_busy=lambda: busy[0])
    lacks.append("delta")
    assert found.ensure_usable(), "one that is not started yet lacks nothing"
    found()
    assert (found.ensure_usable(), ended) == (False, []), "what runs is not disturbed, and nothing new begins"
    busy[0] = False
    assert (found.ensure_usable(), ended, found.state) == (True, [1], "none")
    lacks.clear()
    found()
    assert (found.ensure_usable(), ended, len(started)) == (True, [1], 2)


def test_a_spoiled_session_ends_as_soon_as_no_plan_runs_and_another_one_is_started(monkeypatch):
    started, ended, busy = [], [], [True]
    monkeypatch.setattr(shared_session, "jvm_process", lambda: None)
    monkeypatch.setattr(shared_session, "end_session", lambda: ended.append(len(started)))
    found = SparkSessions(lambda: started.append(1) or object(), is_busy=lambda: busy[0])
    observer = found.observer()
    observer.clean_failed(TABLE, "SessionSpoiled")
    assert found.ensure_usable(), "there is none yet"
    found()
    observer.clean_failed(TABLE, "Transient")
    assert found.ensure_usable()
    observer.clean_failed(TABLE, "SessionSpoiled")
    assert (found.ensure_usable(), ended) == (False, []), "what runs is not disturbed, and nothing new begins"
    busy[0] = False
    assert (found.ensure_usable(), ended, found.state) == (True, [1], "none")
    found()
    assert (found.ensure_usable(), ended, len(started)) == (True, [1], 2)


def test_a_format_that_a_session_was_not_started_for_is_lacking_where_it_needs_anything(monkeypatch):
    of = {
        "one": SessionRequirements(),
        "two": SessionRequirements(packages=("a:b:1",)),
        "three": SessionRequirements(settings={"k": "v"}),
    }
    monkeypatch.setattr(lake.formats, "FORMATS", tuple(of))
    monkeypatch.setattr(lake.formats, "load_format", lambda name: SimpleNamespace(session_requirements=of[name]))
    for started_for, wanted in ((None, []), (frozenset({"two"}), ["three"]), (frozenset(), ["three", "two"])):
        monkeypatch.setattr(spark, "_started_for", started_for)
        assert list(spark.formats_missing_in_session(["one", "two", "three", "of another release"])) == wanted
