# SPDX-License-Identifier: Apache-2.0
"""An S3 for tests: moto, an emulator of Amazon's API, in a process of its own on a free loopback port."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyarrow import fs as pafs

from lake.storage import s3
from lake.storage.locations import bucket_and_key

#: ends with the process that started it; moto looks and writes in two steps, where a store has one
_SERVE = """
import sys
import threading
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

make, alone = threaded_moto_server.make_server, threading.Lock()

def conditional_writes_one_by_one(host, port, app, *arguments, **options):
    def serve(environ, start_response):
        if not {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys():
            return app(environ, start_response)
        with alone:
            return app(environ, start_response)
    return make(host, port, serve, *arguments, **options)

threaded_moto_server.make_server = conditional_writes_one_by_one
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_REQUEST = re.compile(r"((?:GET|HEAD|PUT|POST|DELETE) \S+) HTTP/1.1")


#: methods and parameters of requests → the action of a policy that allows them: of a bucket, and of what is in it
_OF_BUCKETS = {
    ("GET", "location"): "s3:GetBucketLocation",
    ("POST", "delete"): "s3:DeleteObject",
    ("GET", "prefix"): "s3:ListBucket",
    ("GET", "list-type"): "s3:ListBucket",
    ("HEAD", ""): "s3:ListBucket",
}
_OF_OBJECTS = {
    ("GET", ""): "s3:GetObject",
    ("HEAD", ""): "s3:GetObject",
    ("PUT", ""): "s3:PutObject",
    ("PUT", "uploadId"): "s3:PutObject",
    ("POST", "uploads"): "s3:PutObject",
    ("POST", "uploadId"): "s3:PutObject",
    ("DELETE", ""): "s3:DeleteObject",
    ("DELETE", "uploadId"): "s3:AbortMultipartUpload",
}

#: parameters that ask for nothing else
_ASIDE = {"x-id", "partNumber", "versionId"}


def _action(method: str, key: str, parameters: set[str]) -> str:
    """The action of one request; the request itself if it is of an unexpected kind."""
    known = _OF_OBJECTS if key else _OF_BUCKETS
    named = {parameter for parameter in parameters if (method, parameter) in known} or parameters - _ASIDE or {""}
    return known.get((method, min(named)), f"{method} {key} {sorted(parameters)}")


def policy(page: Path) -> set[str]:
    """The actions of the first policy on a page."""
    (text, *_) = re.findall(r"^```json\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return {action for statement in json.loads(text)["Statement"] for action in statement["Action"]}


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    endpoint: str
    log: Path

    @property
    def settings(self) -> Mapping[str, str]:
        """What a configuration's ``[spark]`` has to say for it."""
        return {
            f"{s3.PREFIX}endpoint": self.endpoint,
            f"{s3.PREFIX}access.key": "AKIATESTS",
            f"{s3.PREFIX}secret.key": "s3cret-of-the-tests",
            f"{s3.PREFIX}path.style.access": "true",
        }

    def requests(self) -> list[str]:
        """Method and address of every request so far."""
        return _REQUEST.findall(self.log.read_text())

    def actions(self, bucket: str, *, since: int) -> set[str]:
        """What a policy has to allow for the requests to ``bucket`` behind the first ``since`` of all."""
        addresses = (request.split(" ", 1) for request in self.requests()[since:])
        split = ((method, urlsplit(address)) for method, address in addresses)
        return {
            _action(method, path.path.strip("/").partition("/")[2], {*parse_qs(path.query, keep_blank_values=True)})
            for method, path in split
            if path.path.strip("/").partition("/")[0] == bucket
        }

    def filesystem(self) -> pafs.S3FileSystem:
        """All buckets, to write to without lakefold."""
        return pafs.S3FileSystem(
            access_key="AKIATESTS",
            secret_key="s3cret-of-the-tests",
            region="us-east-1",
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        )

    def upload(self, base: Path, location: str) -> str:
        """Copy a table from the disk to ``location``, whose bucket exists; ``location``."""
        bucket, key = bucket_and_key(location)
        pafs.copy_files(str(base), f"{bucket}/{key}", pafs.LocalFileSystem(), self.filesystem())
        return location

    def tell(self, spark: Any) -> None:
        """Let a session that runs already find the server."""
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for key, value in self.settings.items():
            hadoop.set(key.removeprefix("spark.hadoop."), value)


@contextmanager
def server(log: Path) -> Iterator[S3Server]:
    """A server for as long as the block runs; its log has a line a request."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            port = process.stdout.readline().strip()
            assert port, log.read_text()[-2000:]
            yield S3Server(f"http://127.0.0.1:{port}", log)
            process.stdin.close()
