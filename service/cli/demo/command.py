# SPDX-License-Identifier: Apache-2.0
"""The command line of ``lakefold demo``; the demo itself is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.common import Json, require_local
from service.cli.demo.settings import Format
from service.problems import ExitCode, exit_codes_help


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    root.command("demo", epilog=exit_codes_help(ExitCode.PARTIAL), short_help="Compact and clean a demo table.")(demo)


def demo(
    workdir: Annotated[
        Path | None, typer.Option("--workdir", metavar="DIR", help="The directory for table, database and logs.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep writer and service running at the end.")] = False,
    format: Annotated[Format, typer.Option("--format", help="The format of the table.")] = Format.HUDI,
    json: Json = False,
) -> int:
    """Write a real table with small files, compact and clean it, and compare its rows. Takes about three minutes."""
    from service.cli.demo.demo_run import run as run_demo

    require_local()
    return int(run_demo(format=format, workdir=workdir, keep=keep, json=json) or ExitCode.OK)
