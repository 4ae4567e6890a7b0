# SPDX-License-Identifier: Apache-2.0
"""Commands that work on their own machine only, and what else ``lakefold --url`` can't be told."""

import pytest
from cli_commands import every_command

from service.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_environment")]

#: what is the same from another machine; everything else is refused there
REMOTE = {
    "status",
    "pause",
    "resume",
    "report",
    "tables history",
    "tables list",
    "tables databases",
    "tables show",
    "tables explain",
    "tables replay",
    "tables advise",
    "plans list",
    "plans show",
    "plans request",
    "plans cancel",
    "plans approve",
    "plans decline",
    "plans retry",
    "plans watch",
    "config show",
    "notifications list",
    "notifications retry",
    "notifications drop",
    "audit",
    "simulate",
}
#: a value that each option takes which a command can't do without
TAKEN = {"scope": "read"}
#: an option that has a former name, so that the command itself asks for it
ASKED_FOR = {("tables", "resolve"): ["--keep", "current"]}


def needed(path):
    """The arguments and options without which a command is wrong usage anyway."""
    command = main.root_command()
    for word in path:
        command = command.commands[word]
    required = [parameter for parameter in command.params if parameter.required]
    words = {
        "argument": lambda parameter: ["x"],
        "option": lambda parameter: [parameter.opts[0], TAKEN[parameter.name]],
    }
    given = [word for parameter in required for word in words[parameter.param_type_name](parameter)]
    return given + ASKED_FOR.get(tuple(path), [])


@pytest.mark.parametrize("command", [path for path in every_command() if " ".join(path) not in REMOTE], ids=" ".join)
def test_a_command_of_its_own_machine_is_refused_with_an_address(command, run):
    code, out, err = run("--url", "http://127.0.0.1:1", *command, *needed(command))
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == (
        "lakefold: this command does not work over HTTP; run it on the service's host, without --url and LAKEFOLD_URL"
    )
    assert err.splitlines()[1:] == [f"Try: lakefold {' '.join(command)} --help"]


def test_a_configuration_file_makes_no_sense_with_an_address(run, tmp_path):
    code, _, err = run("--url", "http://127.0.0.1:1", "status", "--config", str(tmp_path / "x.toml"))
    assert (code, "--config and --url can't be combined" in err) == (2, True)
