# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold serve`` and ``lakefold worker``, which run a process of the service."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.common import ConfigFile, Json, command_run
from service.modes import Role
from service.problems import ExitCode, exit_codes_help


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    epilog = exit_codes_help(ExitCode.PARTIAL, ExitCode.DATABASE)
    root.command("serve", epilog=epilog, short_help="Run the service.")(serve)
    root.command("worker", epilog=epilog, short_help="Run plans, sweep and clean; do not scan.")(worker)


ResourceGroups = Annotated[
    list[str] | None,
    typer.Option("--resource-group", metavar="NAME", help="Run only plans of this resource group; repeatable."),
]


def serve(
    role: Annotated[
        Role, typer.Option("--role", help="Run only this role; other processes run the other roles.")
    ] = Role.ALL,
    once: Annotated[bool, typer.Option("--once", help="Do one round of work, then exit.")] = False,
    resource_groups: ResourceGroups = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Run the service until SIGTERM: scan, plan, rewrite, clean, and serve page, HTTP API and /metrics.

    After the first SIGTERM, running plans finish; a second one stops them before their commit. SIGHUP reloads the
    configuration file. With --once, exits 3 if a plan failed or still waits.
    """
    return _serve(role, resource_groups, once=once, json=json, config=config)


def worker(
    once: Annotated[bool, typer.Option("--once", help="Exit when no plan is waiting.")] = False,
    resource_groups: ResourceGroups = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Run plans, sweep and clean, as serve --role executor does.

    With --once, only runs plans, and exits 3 if a plan failed or still waits.
    """
    return _serve(Role.EXECUTOR, resource_groups, once=once, json=json, config=config)


def _serve(role: Role, resource_groups: list[str] | None, *, once: bool, json: bool, config: Path | None) -> int:
    from service.control.config.loader import with_resource_groups
    from service.server.daemon.process import serve as run_daemon

    with command_run(json, config) as run:
        served = with_resource_groups(run.config, resource_groups) if resource_groups else run.config
        return int(run_daemon(served, role.value, once, log_format="json" if json else None))
