# SPDX-License-Identifier: Apache-2.0
"""The commands ``lakefold notifications``: list, retry and drop notifications, and send a test message."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.commands.common import CommandRun, ConfigFile, Json, command_run
from service.cli.output.column_widths import TableColumn
from service.former_names import both_names
from service.problems import TRANSIENT, USAGE, ExitCode, ProblemError, exit_codes_help
from service.text import did_you_mean, format_age, parse_timestamp, plural

if TYPE_CHECKING:
    from service.server.notify.delivery import Receiver

app = typer.Typer(help="Messages to the webhook and to channels: list, retry, drop, test.", no_args_is_help=True)
_CODES = exit_codes_help(ExitCode.NOT_FOUND, ExitCode.DATABASE)
_MAX_ERROR_LENGTH = 60

Numbers = Annotated[list[int] | None, typer.Argument(metavar="NUMBER…", help="The numbers of dead messages.")]
All = Annotated[bool, typer.Option("--all", help="All dead messages.")]


@app.command("list", epilog=exit_codes_help(ExitCode.DATABASE))
def list_(
    state: Annotated[
        str | None, typer.Option("--state", help="Only messages in this state: waiting, delivered or dead.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, newest first.")] = 50,
    after: Annotated[
        int | None, typer.Option("--after", metavar="NUMBER", help="Continue after the message with this number.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """List messages, newest first.

    A message is dead after its last attempt has failed. retry sends it again, drop deletes it.
    """
    if state not in (None, "waiting", "delivered", "dead"):
        raise ProblemError(USAGE, f"--state {state!r}: use waiting, delivered or dead")
    with command_run(json, config) as run:
        found = run.client.notifications(state=state, limit=limit, after=after)
        run.out.results(found, lambda: _print_notifications(run, found, limit))


def _print_notifications(run: CommandRun, found: Sequence[Mapping[str, Any]], limit: int) -> None:
    if not found:
        run.out.note("No notifications.")
        return
    now = datetime.now(UTC)
    rows = (
        (
            m["number"],
            m["event"],
            m["channel"] or "webhook",
            m["table"] or "(all)",
            m["state"],
            m["attempts"],
            format_age(parse_timestamp(m["created_at"]), now),
            (m["error"] or "")[:_MAX_ERROR_LENGTH],
        )
        for m in found
    )
    titles = ("NUMBER", "EVENT", "TO", "TABLE", "STATE", "ATTEMPTS", "WRITTEN", "LAST ERROR")
    run.out.table([TableColumn(title, title in ("NUMBER", "ATTEMPTS")) for title in titles], rows)
    if len(found) == limit:
        run.out.note(f"More may follow: --after {found[-1]['number']}")


@app.command("retry", epilog=_CODES)
def retry(numbers: Numbers = None, everything: All = False, json: Json = False, config: ConfigFile = None) -> None:
    """Send dead messages again.

    Each message gets all its attempts. Waiting messages do not change.
    """
    _check_selection(numbers, everything)
    with command_run(json, config) as run:
        done = run.client.retry_notifications(None if everything else numbers)
        text = f"{plural(done['retried'], 'notification')} will be sent again"
        run.out.result(done, lambda: run.out.line(text))


@app.command("drop", epilog=_CODES)
def drop(numbers: Numbers = None, everything: All = False, json: Json = False, config: ConfigFile = None) -> None:
    """Delete dead messages."""
    _check_selection(numbers, everything)
    with command_run(json, config) as run:
        done = run.client.drop_notifications(None if everything else numbers)
        run.out.result(done, lambda: run.out.line(f"{plural(done['dropped'], 'notification')} dropped"))


@app.command("test", epilog=exit_codes_help())
def send_test(
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Send to this channel instead of the webhook.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Send a message of the event "test" now and print the response.

    The message goes to the webhook, signed, or to a channel.
    """
    from uuid_utils import uuid7

    with command_run(json, config) as run:
        receiver = _open_receiver(run, channel)
        body: dict[str, Any] = {
            "id": str(uuid7()),
            "event": "test",
            "at": datetime.now(UTC).isoformat(),
            "table": None,
            "plan": None,
            "epoch": None,
            "reason": "lakefold notifications test",
            "figures": {},
            "link": None,
        }
        try:
            answer = receiver.send(body)
        finally:
            receiver.close()
        label = f"{'webhook ' if channel is None else ''}{receiver.display_url}"
        if answer.error is not None:
            raise ProblemError(TRANSIENT, f"{label}: {answer.error}", answered=answer.status)
        data = {"webhook": receiver.display_url, "response_status": answer.status, "id": body["id"]}
        outcome = "accepted the message" if answer.status is None else f"answered {answer.status}"
        run.out.result(
            both_names("notification test", data),
            lambda: run.out.line(f"{receiver.display_url} {outcome}"),
        )


def _open_receiver(run: CommandRun, channel: str | None) -> "Receiver":
    """Open the webhook, or a channel. Raises ProblemError if it is not configured, ConfigError if it can't be used."""
    from service.server.notify.channels import open_channels
    from service.server.notify.delivery import open_webhook

    if channel is not None:
        names = [one.name for one in run.config.notify.channels]
        if channel not in names:
            hint = did_you_mean(channel, names) or f"; configured: {', '.join(names) or 'none'}"
            raise ProblemError(USAGE, f"--channel {channel!r} is not in notify.channels{hint}")
        return open_channels(run.config)[channel]
    webhook = open_webhook(run.config)
    if webhook is None:
        raise ProblemError(USAGE, "no webhook is configured; set notify.webhook_url and notify.webhook_secret")
    return webhook


def _check_selection(numbers: list[int] | None, everything: bool) -> None:
    if bool(numbers) == everything:
        raise ProblemError(USAGE, "give the numbers of notifications, or --all")
