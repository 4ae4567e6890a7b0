# SPDX-License-Identifier: Apache-2.0
"""A REST server whose settings ask clients to load only the newest snapshots of branches and tags."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from iceberg_tables import observing, only_table, rest_settings, rows
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.jvm.expiry import unlisted_versions
from lake.plan import SupersededVersion

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", LongType()), NestedField(3, "dt", StringType())
)


class LazyServer(ThreadingHTTPServer):
    """Passes requests to the server at ``uri``; its own ``/v1/config`` overrides the clients' loading mode by "refs".

    If a client asks for this mode, it gets only the snapshots that branches and tags name, as the interface says.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.uri, self.loads = uri, list[dict[str, list[str]]]()


class _Handler(BaseHTTPRequestHandler):
    server: LazyServer

    def do_GET(self) -> None:
        with urllib.request.urlopen(f"{self.server.uri}{self.path}", timeout=30) as response:
            document = json.load(response)
        parts = urlsplit(self.path)
        if parts.path == "/v1/config":
            document["overrides"] = {"snapshot-loading-mode": "refs"}
        if "/tables/" in parts.path:
            query = parse_qs(parts.query)
            self.server.loads.append(query)
            if query.get("snapshots") == ["refs"]:
                metadata = document["metadata"]
                named = {one["snapshot-id"] for one in metadata["refs"].values()}
                metadata["snapshots"] = [one for one in metadata["snapshots"] if one["snapshot-id"] in named]
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


@pytest.fixture
def lazy(rest_server: str) -> Iterator[LazyServer]:
    with LazyServer(rest_server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_files_of_earlier_snapshots_are_known_although_the_server_asks_for_refs_only(
    rest_server: str, lazy: LazyServer, tmp_path: Path
):
    """An expiry deletes superseded files that no snapshot lists."""
    with RestCatalog("owner", uri=rest_server) as owner:
        owner.create_namespace("lazily")
        table = owner.create_table("lazily.orders", SCHEMA, location=f"file://{tmp_path}/orders")
        table.append(rows(0, 10))
        first = next(iter(table.scan().plan_files())).file.file_path
        table.overwrite(rows(10, 20))
        settings = rest_settings(f"http://127.0.0.1:{lazy.server_address[1]}")
        ref = only_table(observing(settings), namespace="lazily")  # other tests leave tables at the server
        loaded = load_table(settings, ref)
        snapshots = [one.snapshot_id for one in table.metadata.snapshots]
        owner.drop_table("lazily.orders")
    assert len(snapshots) > 1
    assert [one.snapshot_id for one in loaded.metadata.snapshots] == snapshots
    assert lazy.loads
    assert all(query == {"snapshots": ["all"]} for query in lazy.loads)
    path = first.removeprefix("file://")
    version = SupersededVersion(partition="", path=path, bytes=1, instant=str(snapshots[0]))
    assert list(unlisted_versions(loaded, {0: version})) == []
