# SPDX-License-Identifier: Apache-2.0
"""A Spark session over a metastore that lives on in a process of its own, as a notebook's or a Thrift server's does.

``python hive_session.py URI PLACE`` reads statements from its input, one JSON string a line, and answers each with one
line: ``{"rows": [...]}``, each row as JSON, or ``{"error": "..."}``. ``Session`` is the other end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hive_metastore import MetastoreServer, end_with_parent
from hive_tables import session_of


class Session:
    """Asks the process; one statement after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """The rows of a statement. ``PYTHON code`` runs code that knows the session as ``spark``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the session has ended at: {statement}"
        answer = json.loads(line)
        assert "error" not in answer, f"{statement}: {answer.get('error')}"
        return list(answer["rows"])


@contextmanager
def session(server: MetastoreServer, zone: str | None = None) -> Iterator[Session]:
    """A session for as long as it is needed, whose host is in the time zone ``zone`` where one is given."""
    command = [sys.executable, __file__, server.uri, str(server.place)]
    with (
        (server.home / "session.log").open("ab") as log,
        subprocess.Popen(
            command,
            cwd=server.home,
            env=os.environ | ({"TZ": zone} if zone else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=end_with_parent,
        ) as process,
    ):
        yield Session(process)
        assert process.stdin is not None
        process.stdin.close()


def _serve(uri: str, place: str) -> None:
    spark = session_of(uri, place)
    for line in sys.stdin:
        statement = json.loads(line).format(place=Path(place))
        try:
            if statement.startswith("PYTHON "):
                exec(statement.removeprefix("PYTHON "), {"spark": spark})
                rows = []
            else:
                rows = [json.loads(row) for row in spark.sql(statement).toJSON().collect()]
            answer: dict[str, Any] = {"rows": rows}
        except Exception as error:
            answer = {"error": str(error)[:2000]}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
