# SPDX-License-Identifier: Apache-2.0
"""The ``lakefold`` command line.

This module imports only fast modules, so that ``lakefold --help`` prints at once. Each command imports its own
dependencies when it runs.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from service.cli.commands import (
    advise,
    audit,
    clean,
    config,
    db,
    history,
    init,
    notifications,
    orphans,
    pause,
    plans,
    relocated_partitions,
    replay,
    report,
    serve,
    simulate,
    status,
    tables,
    tokens,
    verify,
)
from service.cli.commands.common import remote_url
from service.cli.demo import command as demo
from service.cli.output.command_output import CommandOutput
from service.problems import USAGE, ExitCode, ProblemError, classify, exit_codes_help

app = typer.Typer(
    name="lakefold",
    help="Keeps the files of a data lake the right size after they are written.",
    epilog="Settings come from lakefold.toml, LAKEFOLD_… variables and the command line; every command has --json.\n\n"
    + exit_codes_help(*ExitCode),
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from lake.version import __version__

        typer.echo(f"lakefold {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="LAKEFOLD_URL",
            help="Use the lakefold service at this address instead of this machine, with the token in LAKEFOLD_TOKEN.",
        ),
    ] = None,
) -> None:
    remote_url.set(url or None)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


init.add_to(app)
serve.add_to(app)
status.add_to(app)
report.add_to(app)
pause.add_to(app)
demo.add_to(app)
orphans.add_to(tables.app)
relocated_partitions.add_to(tables.app)
history.add_to(tables.app)
replay.add_to(tables.app)
advise.add_to(tables.app)
app.add_typer(tables.app, name="tables")
app.add_typer(plans.app, name="plans")
simulate.add_to(app)
clean.add_to(app)
verify.add_to(app)
app.add_typer(notifications.app, name="notifications")
audit.add_to(app)
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.add_typer(tokens.app, name="tokens")


@cache
def root_command() -> TyperGroup:
    """Return the Click command of ``app``, with every subcommand and option."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Errors are printed on stderr and never raised, except with LAKEFOLD_DEBUG=1.
    """
    before_dashes = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    out = CommandOutput(json="--json" in before_dashes)
    try:
        result: Any = root_command()(args=list(arguments), prog_name="lakefold", standalone_mode=False)
    except TyperException as error:
        return _report_usage_error(out, error)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("LAKEFOLD_DEBUG") == "1":
            raise
        problem = classify(error)
        out.error(error, hint=f"Try: {_command_name(arguments)} --help\n" if problem.code == ExitCode.USAGE else "")
        return problem.code
    return result if isinstance(result, int) else ExitCode.OK


def _command_name(arguments: Sequence[str]) -> str:
    """Return the command without options and values, such as ``lakefold plans list``."""
    words = [
        word
        for before, word in zip(("", *arguments), arguments, strict=False)
        if not word.startswith("-") and before != "--url"
    ]
    nouns = {group.name for group in app.registered_groups}
    return " ".join(["lakefold", *words[: 2 if words and words[0] in nouns else 1]])


def _report_usage_error(out: CommandOutput, error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "lakefold"
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
        return ExitCode.USAGE
    out.error(ProblemError(USAGE, message, hint=f"{path} --help"), hint=f"Try: {path} --help\n")
    return ExitCode.USAGE


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
