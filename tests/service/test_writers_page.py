# SPDX-License-Identifier: Apache-2.0
"""What docs/writers.md tells writers to run is run, word for word."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from api_toys import add_token, context_at
from daemon_toys import write_config

from lake.model import TableRef
from service.control.config.http import HttpSettings
from service.control.config.loader import load_config
from service.server.http.app import create_app
from service.server.http.server import HttpServer

PAGE = (Path(__file__).parents[2] / "docs" / "writers.md").read_text()


def block(language, word):
    """The block of code in ``language`` that has ``word``."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if word in text]
    return found


@pytest.mark.parametrize(
    "command", [["sh", "-ec", block("sh", "curl")], [sys.executable, "-c", block("python", "urllib")]]
)
def test_a_writer_that_runs_the_example_of_the_page_reports_its_partition(tmp_path, command):
    (tmp_path / "lake").mkdir()
    context = context_at(tmp_path)
    context.store.register_table(TableRef(name="demo.trips", format="toy", location="/lake/trips"), "compact")
    app = create_app(replace(context, config=load_config(write_config(tmp_path))))
    with HttpServer(HttpSettings(port=0), app) as server:
        environment = {
            "PATH": "/usr/bin:/bin",
            "LAKEFOLD_URL": server.url,
            "LAKEFOLD_TOKEN": add_token(context.store, "write"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
    assert [(entry.table, entry.partition) for entry in context.store.write_reports()] == [
        ("demo.trips", "dt=2026-03-01")
    ]
    context.store.close()
