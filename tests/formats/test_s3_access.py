# SPDX-License-Identifier: Apache-2.0
"""How S3 is reached without a JVM: spellings, settings, refusals, what goes wrong, and how often it is asked."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hudi_writing import FORMAT
from s3_server import S3Server

from lake.errors import CommitUnknown, Rejected, Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.errors import translate_error
from lake.formats.hudi.lock_settings.providers import lock_file_path
from lake.formats.hudi.read.hudi_rs import open_table
from lake.model import Concurrency, TableRef
from lake.storage import s3
from lake.storage.filesystems import filesystem_of_file
from lake.storage.locations import bucket_and_key, canonical_location, resolve_path
from lake.storage.s3 import S3Access
from service.control.config.catalog import Catalog
from service.control.wiring import open_config

KEYS = {"access.key": "AKIA", "secret.key": "s3cret"}


def ref(location: str, **options: str) -> TableRef:
    concurrency = Concurrency.OCC if options else Concurrency.SINGLE_WRITER
    return TableRef(name="t", format="hudi", location=location, concurrency=concurrency, write_options=options)


def test_a_bucket_has_one_spelling() -> None:
    assert {canonical_location(f"{scheme}://b/lake/t/") for scheme in ("s3", "s3a", "s3n", "S3A")} == {"s3://b/lake/t"}
    assert bucket_and_key("s3a://b") == bucket_and_key("s3://b/") == ("b", "")
    assert bucket_and_key("s3://b/lake//t/") == ("b", "lake/t")


@pytest.mark.parametrize(
    ("location", "path", "place"),
    [
        ("/lake/t", "dt=1/a.parquet", "/lake/t/dt=1/a.parquet"),
        ("/lake/t", "/old/t/dt=1/a.parquet", "/old/t/dt=1/a.parquet"),
        ("/lake/t", "s3a://b/dt=1/a.parquet", "s3a://b/dt=1/a.parquet"),
        ("s3://b/t", "name=file:a/a.parquet", "s3://b/t/name=file:a/a.parquet"),
        ("s3://b/t", "file:a/a.parquet", "s3://b/t/file:a/a.parquet"),
        ("s3://b/t", "file:/old/a.parquet", "file:/old/a.parquet"),
        ("s3://b/t", "a.parquet", "s3://b/t/a.parquet"),
    ],
)
def test_a_file_is_below_its_table_unless_its_path_is_absolute(location: str, path: str, place: str) -> None:
    assert resolve_path(location, path) == place


def test_a_table_may_have_files_in_another_bucket(bucket: str, s3_server: S3Server, tmp_path: Path) -> None:
    with s3_server.filesystem().open_output_stream(f"{bucket}/dt=1/a.parquet") as stream:
        stream.write(b"far")
    (tmp_path / "a.parquet").write_bytes(b"near")
    for path, content in ((f"s3a://{bucket}/dt=1/a.parquet", b"far"), ("a.parquet", b"near")):
        filesystem, name = filesystem_of_file(str(tmp_path), path)
        with filesystem.open_input_file(name) as file:
            assert file.read() == content


@pytest.mark.parametrize("location", ["gs://bucket/t", "abfs://c@account.dfs.core.windows.net/t"])
def test_other_stores_are_refused_by_their_scheme(location: str) -> None:
    scheme = location.partition(":")[0]
    with pytest.raises(
        Rejected, match=f"scheme '{scheme}' is not supported; give a local path, or a file://, hdfs:// or s3:"
    ):
        FORMAT.check(ref(location))


def test_settings_of_s3a_are_passed_to_hudi_rs_as_options_and_in_the_environment() -> None:
    settings = KEYS | {"session.token": "t0ken", "endpoint": "http://minio:9000/", "path.style.access": "true"}
    keys = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s3cret", "aws_session_token": "t0ken"}
    expected = keys | {
        "aws_endpoint": "http://minio:9000",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
        "aws_region": "us-east-1",
    }
    assert S3Access.of("mine", settings).object_store_options("mine") == expected
    assert S3Access.of("mine", settings).environment() == {key.upper(): value for key, value in expected.items()}
    other = {"endpoint": "store.example", "path.style.access": "false", "endpoint.region": "here"}
    assert S3Access.of("other", settings | other).object_store_options("other") == keys | {
        "aws_endpoint": "https://other.store.example",
        "aws_virtual_hosted_style_request": "true",
        "aws_region": "here",
    }
    assert "s3cret" not in repr(S3Access.of("mine", settings))


@pytest.mark.parametrize(
    ("settings", "environment", "region"),
    [
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, "eu-north-1", "eu-west-1"),
        ({"endpoint.region": "eu-west-2"}, "eu-north-1", "eu-west-2"),
        ({"endpoint": "https://s3.amazonaws.com"}, "eu-north-1", "eu-north-1"),
        ({}, "", "asked"),
    ],
)
def test_the_region_is_the_nearest_configured_one_or_else_amazons_answer(
    settings: dict[str, str], environment: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", environment)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setattr(s3, "_region_of", lambda bucket: "asked")
    options = S3Access.of("b", settings).object_store_options("b")
    assert options == {"aws_region": region, "aws_virtual_hosted_style_request": "true"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"access.key": "AKIA"}, "access.key and secret.key go together; set spark.hadoop.fs.s3a.secret.key in"),
        (
            {"bucket.b.endpoint": "http://minio:9000"},
            "fs.s3a.bucket.b.endpoint would apply to Spark only: .*; set spark.hadoop.fs.s3a.endpoint for all buckets",
        ),
        (
            {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"},
            "provider = AssumedRoleCredentialProvider is known to Spark only, .* leave it unset for AWS's",
        ),
    ],
)
def test_a_setting_that_would_apply_to_spark_only_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(Rejected, match=message):
        S3Access.of("b", settings)


def test_nothing_is_signed_for_a_public_bucket() -> None:
    provider = {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    access = S3Access.of("b", KEYS | provider)
    assert (access.anonymous, access.access_key) == (True, None)


@pytest.fixture
def answers() -> Iterator[dict[str, Any]]:
    """A server whose every answer is ``status`` and the error ``code``; this process takes it for S3."""
    answer: dict[str, Any] = {"status": 403, "code": "AccessDenied"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<Error><Code>{answer['code']}</Code><Message>no</Message></Error>".encode()
            self.send_response(answer["status"])
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        settings = KEYS | {"endpoint": f"http://127.0.0.1:{server.server_port}", "path.style.access": "true"}
        s3.configure({f"{s3.PREFIX}{key}": value for key, value in settings.items()})
        yield answer
        s3.configure({})
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AccessDenied", "allow s3:ListBucket on the bucket"),
        (403, "InvalidAccessKeyId", "check spark.hadoop.fs.s3a.access.key and secret.key"),
        (403, "SignatureDoesNotMatch", "check spark.hadoop.fs.s3a.access.key and secret.key"),
        (301, "PermanentRedirect", "set spark.hadoop.fs.s3a.endpoint.region"),
    ],
)
def test_a_refusal_by_s3_is_one_line_with_its_remedy(
    answers: dict[str, Any], status: int, code: str, remedy: str
) -> None:
    answers.update(status=status, code=code)
    with pytest.raises(Rejected, match=f"s3://b/t.*{remedy}") as refused:
        TableStorage("s3a://b/t").children("")
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_store_that_throttles_or_is_unavailable_is_tried_again_later(answers: dict[str, Any]) -> None:
    answers.update(status=503, code="SlowDown")
    with pytest.raises(Transient, match=r"s3://b/t: .*SLOW_DOWN"):
        TableStorage("s3a://b/t").children("")
    s3.configure({f"{s3.PREFIX}{key}": value for key, value in (KEYS | {"endpoint": "http://127.0.0.1:9"}).items()})
    with pytest.raises(Transient, match=r"s3://b/t: .*connect"):
        TableStorage("s3a://b/t").children("")


@pytest.mark.usefixtures("answers")
def test_hudi_rs_gets_the_settings_through_the_environment_over_existing_values() -> None:
    with mock.patch.dict(os.environ, {"AWS_REGION": "elsewhere"}):
        with pytest.raises(Exception, match=r"AccessDenied|403|Forbidden"):
            open_table(TableStorage("s3://b/t"))
        expected = s3.access("b").environment()
        assert expected["AWS_REGION"] == "us-east-1"
        assert expected.items() <= os.environ.items()


def put_table(server: S3Server, location: str, *partitions: str) -> None:
    """A table of one data file a partition, as far as listing goes."""
    bucket, key = bucket_and_key(location)
    filesystem = server.filesystem()
    properties = "hoodie.table.name=t\nhoodie.table.version=9\nhoodie.timeline.layout.version=2\n"
    files = {".hoodie/hoodie.properties": properties} | {f"{partition}/1.parquet": "x" for partition in partitions}
    for path, content in files.items():
        with filesystem.open_output_stream(f"{bucket}/{key}/{path}") as stream:
            stream.write(content.encode())


def test_a_lock_file_on_s3_is_refused_with_the_providers_that_lock_there(bucket: str, s3_server: S3Server) -> None:
    location = f"s3://{bucket}/lake/t"
    put_table(s3_server, location)
    FORMAT.check(ref(location))
    provider = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
    expected = rf"FileSystemBasedLockProvider can't lock on S3 \({location}\).*use a Zoo.* or concurrency = \"single_wr"
    with pytest.raises(Rejected, match=expected):
        FORMAT.check(ref(location, **provider))
    FORMAT.check(ref(location, **provider, **{"hoodie.write.lock.filesystem.path": "/mnt/locks"}))
    assert lock_file_path(ref(location, **provider)) is None


def test_a_prefix_is_searched_and_an_empty_one_is_refused(bucket: str, s3_server: S3Server) -> None:
    for name in ("sales/orders", "sales/eu/trips"):
        put_table(s3_server, f"s3://{bucket}/lake/{name}")
    before = len(s3_server.requests())
    found = [table.location for table in FORMAT.discover(f"s3n://{bucket}/lake/")]
    assert found == [f"s3://{bucket}/lake/sales/eu/trips", f"s3://{bucket}/lake/sales/orders"]
    assert len(s3_server.requests()) - before <= 18
    assert [table.location for table in FORMAT.discover(found[0])] == found[:1]
    for nothing in (f"s3://{bucket}/leak", "s3://no-such-bucket/lake", "s3://no-such-bucket"):
        with pytest.raises(Rejected, match=f"{nothing}: no such directory"):
            list(FORMAT.discover(nothing))


def test_files_are_listed_with_a_request_a_directory_and_not_with_one_a_file(bucket: str, s3_server: S3Server) -> None:
    partitions = [f"dt={day}" for day in range(6)]
    put_table(s3_server, f"s3://{bucket}/t", *partitions, *(f"dt=0/hour={hour}" for hour in range(5)))
    storage = TableStorage(f"s3a://{bucket}/t")

    def requests(look: Callable[[], object], expected: object) -> int:
        before = len(s3_server.requests())
        assert look() == expected
        return len(s3_server.requests()) - before

    everything = [*(f"{p}/1.parquet" for p in partitions), *(f"dt=0/hour={hour}/1.parquet" for hour in range(5))]
    assert requests(lambda: dict(storage.data_file_sizes()), dict.fromkeys(everything, 1)) == 1 + len(partitions)
    some = dict.fromkeys(("dt=1/1.parquet", "dt=2/1.parquet"), 1)
    assert requests(lambda: storage.sizes([*some, "dt=1/2.parquet", "dt=1/3.parquet", "dt=9/1.parquet"]), some) == 3
    assert storage.newest_modification("dt=1") is not None
    assert storage.newest_modification("dt=9") is None


def test_a_lake_named_twice_in_two_spellings_has_each_table_once(
    bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "eu/trips"):
        put_table(s3_server, f"s3://{bucket}/lake/{name}")
    file = tmp_path / "lakefold.toml"
    settings = "".join(f'"{key}" = "{value}"\n' for key, value in s3_server.settings.items())
    sources = "".join(f'[[sources]]\npath = "{scheme}://{bucket}/lake/"\n' for scheme in ("s3a", "s3"))
    file.write_text(f'[spark]\n{settings}\n{sources}[[sources]]\npath = "s3n://no-such-bucket/t"\n')
    s3.configure({})
    catalog = Catalog(open_config(file))
    tables = [(table.name, table.ref.location) for table in catalog.tables()]
    assert tables == [("eu.trips", f"s3://{bucket}/lake/eu/trips"), ("orders", f"s3://{bucket}/lake/orders")]
    (problem,) = catalog.problems
    assert problem.startswith("source #3 (s3n://no-such-bucket/t): s3://no-such-bucket/t: no such directory")
    for word in ("orders", f"s3a://{bucket}/lake/orders", f"s3n://{bucket}/lake/orders/"):
        assert catalog.find(word).name == "orders"


@pytest.mark.parametrize(
    ("java", "message", "outcome"),
    [
        (
            "java.lang.ClassNotFoundException",
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            'lacks a class while testing .*S3AFileSystem not found.*; add the jar that has it to "spark.jars.packages"',
        ),
        ("org.apache.hadoop.fs.s3a.UnknownStoreException", "`s3a://b/': Bucket does not exist", "correct the location"),
        ("java.nio.file.AccessDeniedException", "getFileStatus on s3a://b/t: 403", "give lakefold write access"),
    ],
)
def test_missing_or_forbidden_objects_of_s3a_are_refused_and_not_tried_again(
    java: str, message: str, outcome: str
) -> None:
    class Cause:
        def getClass(self) -> "Cause":  # noqa: N802
            return self

        def getName(self) -> str:  # noqa: N802
            return java

        def getMessage(self) -> str:  # noqa: N802
            return message

        def getCause(self) -> None:  # noqa: N802
            return None

    error = RuntimeError("An error occurred")
    error.java_exception = Cause()  # type: ignore[attr-defined]
    found = translate_error(error, ref("s3://b/t"), "testing")
    assert isinstance(found, Rejected)
    assert re.search(outcome, str(found))
    assert isinstance(translate_error(error, ref("s3://b/t"), "testing", committing=True), CommitUnknown)
