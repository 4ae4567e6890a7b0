# SPDX-License-Identifier: Apache-2.0
"""Writers tell over HTTP what they have written: in their own words, and as Hudi's commit callback does."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from api_toys import add_token, client_of, context_at
from daemon_toys import running, write_config
from toys.files import rows
from toys.timeline import manifest
from toys.timeline_tables import create, write
from waiting import wait_for

from lake.model import TableRef
from service.control.config.loader import ConfigError, load_config
from service.server.api.callbacks import MAX_BODY_BYTES
from service.server.api.table_lookup import normalize_location
from service.server.daemon.process import Daemon

KEY = "a key that nobody guesses"
TRIPS = TableRef(name="demo.trips", format="toy", location="/lake/demo/trips")
REMOTE = TableRef(name="demo.rides", format="toy", location="s3://lake/demo/rides")


@pytest.fixture
def context(tmp_path):
    """The process behind an application that knows two tables in mode compact."""
    (tmp_path / "lake").mkdir()
    context = context_at(tmp_path)
    for table in (TRIPS, REMOTE):
        context.store.register_table(table, "compact")
    yield replace(context, config=load_config(write_config(tmp_path, http={"hudi_callback_key": KEY})))
    context.store.close()


@pytest.fixture
def client(context):
    """A client with the write scope."""
    with client_of(context, add_token(context.store, "write", "airflow")) as client:
        yield client


@pytest.fixture
def writer(context):
    """A client that has nothing but the key of Hudi's callback."""
    with client_of(context) as client:
        client.headers["HUDI-CALLBACK-KEY"] = KEY
        yield client


def reported(context):
    """(table, partition) of everything that waits for the scheduler."""
    return sorted((entry.table, entry.partition) for entry in context.store.write_reports())


def callback(*partitions, **changes):
    """What Hudi 1.2 sends after a commit that wrote a file in each of ``partitions``."""
    stats = [
        {
            "fileId": f"{number}-0",
            "path": f"{partition}/{number}.parquet",
            "partitionPath": partition,
            "prevCommit": "null",
            "numWrites": 7,
            "numInserts": 7,
            "fileSizeInBytes": 1234,
            "prevBaseFile": None,
            "logFiles": [],
            "totalWriteErrors": 0,
        }
        for number, partition in enumerate(partitions)
    ]
    message = {"commitTime": "20260301120000000", "tableName": "trips", "basePath": "file:/lake/demo/trips"}
    return {**message, "commitActionType": "commit", "hoodieWriteStat": stats, **changes}


def test_partitions_that_a_writer_reports_wait_for_the_scheduler(context, client):
    answer = client.post("/v1/events/commit", json={"table": "demo.trips", "partitions": ["dt=2", "dt=1/", "dt=2"]})
    assert (answer.status_code, answer.json()) == (
        202,
        {"table": "demo.trips", "partitions": ["dt=1", "dt=2"], "accepted": True, "reason": None},
    )
    assert reported(context) == [("demo.trips", "dt=1"), ("demo.trips", "dt=2")]
    assert {entry.reported_by for entry in context.store.write_reports()} == {"token airflow"}


def test_a_writer_may_name_the_location_and_no_partitions(context, client):
    answer = client.post("/v1/events/commit", json={"table": "s3a://lake/demo/rides/"})
    assert (answer.status_code, answer.json()["table"], answer.json()["partitions"]) == (202, "demo.rides", None)
    assert reported(context) == [("demo.rides", None)]


def test_a_report_on_a_table_that_is_only_observed_is_answered_and_not_kept(tmp_path, context):
    observing = replace(context, config=load_config(write_config(tmp_path, mode="observe")))
    with client_of(observing, add_token(context.store, "write")) as client:
        answer = client.post("/v1/events/commit", json={"table": "demo.trips", "partitions": ["dt=1"]})
    assert answer.status_code == 202
    assert (answer.json()["accepted"], answer.json()["reason"]) == (False, "demo.trips is in mode observe")
    assert reported(context) == []


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"table": "demo.trip"}, 404, "did you mean 'demo.trips'?"),
        ({"table": "/etc"}, 404, "no table is known at '/etc'"),
        ({"table": "demo.trips", "partitions": ["../secret"]}, 422, "a partition is a path inside its table"),
        ({"table": "demo.trips", "partitions": ["dt=\u0000"]}, 422, "pattern"),
        ({"table": "demo.trips", "partitions": "dt=1"}, 422, "list"),
        ({"table": "demo.trips'; DROP TABLE plan; --"}, 404, "no table"),
        ({}, 422, "Field required"),
    ],
)
def test_a_bad_report_is_refused_and_nothing_is_kept(context, client, body, status, words):
    answer = client.post("/v1/events/commit", json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]
    assert reported(context) == []


def test_hudis_callback_reports_the_partitions_of_its_commit(context, writer):
    answer = writer.post("/v1/events/hudi", json=callback("dt=1", "dt=3", "dt=1"))
    assert (answer.status_code, answer.json()) == (
        202,
        {
            "table": "demo.trips",
            "partitions": ["dt=1", "dt=3"],
            "accepted": True,
            "reason": None,
            "instant": "20260301120000000",
        },
    )
    assert reported(context) == [("demo.trips", "dt=1"), ("demo.trips", "dt=3")]


def test_a_callback_of_an_older_hudi_without_files_reports_the_whole_table(context, writer):
    message = callback()
    del message["hoodieWriteStat"], message["commitActionType"]
    assert writer.post("/v1/events/hudi", json=message).status_code == 202
    assert reported(context) == [("demo.trips", None)]


def test_a_callback_of_a_commit_that_wrote_nothing_and_of_an_unpartitioned_table(context, writer):
    assert writer.post("/v1/events/hudi", json=callback()).json()["partitions"] == []
    assert reported(context) == []
    assert writer.post("/v1/events/hudi", json=callback("")).status_code == 202
    assert reported(context) == [("demo.trips", "")]


def test_a_callback_with_every_file_of_a_large_commit_is_taken(context, writer):
    message = callback(*(f"dt={n % 7}" for n in range(8000)))
    assert len(json.dumps(message)) > context.config.http.max_body_size
    assert writer.post("/v1/events/hudi", json=message).status_code == 202
    assert len(reported(context)) == 7
    too_large = writer.post("/v1/events/hudi", headers={"Content-Length": str(MAX_BODY_BYTES["/v1/events/hudi"] + 1)})
    assert too_large.status_code == 413


@pytest.mark.parametrize("key", [None, "", KEY + "!", KEY.upper(), "\xe9"])
def test_a_callback_with_a_wrong_key_is_refused_before_its_body_is_read(context, writer, key):
    del writer.headers["HUDI-CALLBACK-KEY"]
    headers = [] if key is None else [(b"HUDI-CALLBACK-KEY", key.encode("latin-1"))]
    answer = writer.post("/v1/events/hudi", content=b"{ not json", headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (401, "application/problem+json")
    assert reported(context) == []


def test_without_a_configured_key_the_callback_is_off(tmp_path, context, writer):
    off = replace(context, config=load_config(write_config(tmp_path)))
    with client_of(off, add_token(context.store, "write")) as client:
        answer = client.post("/v1/events/hudi", json=callback("dt=1"), headers={"HUDI-CALLBACK-KEY": ""})
    assert (answer.status_code, answer.json()["detail"]) == (
        401,
        "Hudi's callback is off; set [http] hudi_callback_key",
    )


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{ not json", 422),
        (b"[]", 422),
        (b"{}", 422),
        (json.dumps(callback("dt=1", basePath="/etc")).encode(), 404),
        (json.dumps(callback("../../etc")).encode(), 422),
        (json.dumps(callback(hoodieWriteStat="x")).encode(), 422),
    ],
)
def test_a_bad_callback_is_a_problem_and_keeps_nothing(context, writer, content, status):
    answer = writer.post("/v1/events/hudi", content=content)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert reported(context) == []


@pytest.mark.parametrize("key", ["short", "hudi_write_commit_http_callback"])
def test_a_key_that_others_could_guess_is_refused_in_the_configuration(tmp_path, key):
    (tmp_path / "lake").mkdir()
    with pytest.raises(ConfigError, match="16 characters or more, and must not be Hudi's default") as refused:
        load_config(write_config(tmp_path, http={"hudi_callback_key": key}))
    assert key not in str(refused.value)


def test_a_callback_for_another_name_of_a_tables_directory_is_the_tables(context, writer, tmp_path):
    known = replace(TRIPS, name="demo.linked", location=str(tmp_path / "lake/trips"))
    Path(known.location).mkdir()
    context.store.register_table(known, "compact")
    (tmp_path / "alias").symlink_to(known.location)
    answer = writer.post("/v1/events/hudi", json=callback("dt=1", basePath=str(tmp_path / "alias")))
    assert answer.status_code == 202, answer.text
    assert reported(context) == [("demo.linked", "dt=1")]


def test_all_spellings_of_a_uri_are_one_location():
    assert {normalize_location(f"{scheme}/lake/t") for scheme in ("", "file:", "file://", "file:/")} == {"/lake/t"}
    assert normalize_location("/lake//a/../t/") == "/lake/t"
    assert {normalize_location(f"{s}://b/lake//t/") for s in ("s3", "s3a", "s3n")} == {"s3://b/lake/t"}
    assert normalize_location("hdfs://name/lake/t") != normalize_location("/lake/t")


@pytest.mark.slow
def test_on_the_real_daemon_a_report_becomes_a_plan_that_is_followed_to_its_end(toys, tmp_path):
    table = create(tmp_path / "lake" / "t1", name="t1", partitions=5, files=1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = context_at(tmp_path).store
    config = load_config(write_config(tmp_path, policy={"scan_interval": "1h"}, http={"port": port}))
    headers = {"Authorization": f"Bearer {add_token(store, 'write')}"}
    with (
        running(Daemon(config, "all")),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client,
    ):
        wait_for(lambda: store.last_scan("t1"), "the first scan")
        write(table, "dt=3", rows(1000, 1050))
        report = {"table": str(tmp_path / "lake" / "t1"), "partitions": ["dt=3"]}
        assert client.post("/v1/events/commit", json=report).status_code == 202
        (plan,) = wait_for(lambda: client.get("/v1/plans").json()["items"], "a plan", 10)
        followed = client.get(f"/v1/plans/{plan['plan_id']}/progress").text
    assert json.loads(followed.rpartition("data: ")[2].partition("\n")[0])["state"] == "completed"
    assert sum(item["partition"] == "dt=3" for item in manifest(table)["files"]) == 1
    store.close()
