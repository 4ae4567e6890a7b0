# SPDX-License-Identifier: Apache-2.0
"""``lakefold notifications``: what the webhook was told, what it could not be told, and whether it listens."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from service.commands.common import ConfigFile, Json, Run, command, plural
from service.commands.output import Column
from service.problems import TRANSIENT, USAGE, CommandError, ExitCode, exit_codes
from service.text import age, moment

app = typer.Typer(help="Messages to the webhook: sent, waiting, given up.", no_args_is_help=True)
_CODES = exit_codes(ExitCode.NOT_FOUND, ExitCode.DATABASE)
_LONGEST_ERROR = 60

Numbers = Annotated[list[int] | None, typer.Argument(metavar="NUMBER…", help="Notifications that were given up.")]
All = Annotated[bool, typer.Option("--all", help="All that were given up.")]


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    root.add_typer(app, name="notifications")


@app.command("list", epilog=exit_codes(ExitCode.DATABASE))
def list_(
    state: Annotated[str | None, typer.Option("--state", help="Only waiting, delivered or dead ones.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, newest first.")] = 50,
    after: Annotated[int | None, typer.Option("--after", metavar="NUMBER", help="Continue after this one.")] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """List messages, newest first. Dead ones were given up: retry sends them again, drop forgets them."""
    if state not in (None, "waiting", "delivered", "dead"):
        raise CommandError(USAGE, f"--state {state!r}: use waiting, delivered or dead")
    with command(json, config) as run:
        found = run.client.notifications(state=state, limit=limit, after=after)
        run.out.many(found, lambda: _list_text(run, found, limit))


def _list_text(run: Run, found: Sequence[Mapping[str, Any]], limit: int) -> None:
    if not found:
        run.out.note("No notifications.")
        return
    now = datetime.now(UTC)
    rows = (
        (
            m["number"],
            m["event"],
            m["table"] or "(all)",
            m["state"],
            m["attempts"],
            age(moment(m["created_at"]), now),
            (m["error"] or "")[:_LONGEST_ERROR],
        )
        for m in found
    )
    titles = ("NUMBER", "EVENT", "TABLE", "STATE", "ATTEMPTS", "WRITTEN", "LAST ERROR")
    run.out.table([Column(title, title in ("NUMBER", "ATTEMPTS")) for title in titles], rows)
    if len(found) == limit:
        run.out.note(f"More may follow: --after {found[-1]['number']}")


@app.command("retry", epilog=_CODES)
def retry(numbers: Numbers = None, everything: All = False, json: Json = False, config: ConfigFile = None) -> None:
    """Send messages again that were given up, with all their attempts; those that wait do so already."""
    _chosen(numbers, everything)
    with command(json, config) as run:
        done = run.client.retry_notifications(None if everything else numbers)
        text = f"{plural(done['retried'], 'notification')} will be sent again"
        run.out.one(done, lambda: run.out.line(text))


@app.command("drop", epilog=_CODES)
def drop(numbers: Numbers = None, everything: All = False, json: Json = False, config: ConfigFile = None) -> None:
    """Forget messages that were given up."""
    _chosen(numbers, everything)
    with command(json, config) as run:
        done = run.client.drop_notifications(None if everything else numbers)
        run.out.one(done, lambda: run.out.line(f"{plural(done['dropped'], 'notification')} dropped"))


@app.command("test", epilog=exit_codes())
def try_out(json: Json = False, config: ConfigFile = None) -> None:
    """Send one signed message of the event "test" to the webhook now and say what it answered."""
    from uuid_utils import uuid7

    from service.notify.delivery import open_webhook

    with command(json, config) as run:
        webhook = open_webhook(run.config)
        if webhook is None:
            raise CommandError(USAGE, "no webhook is configured; set notify.webhook_url and notify.webhook_secret")
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
        with webhook:
            answer = webhook.send(body)
        if answer.error is not None:
            raise CommandError(TRANSIENT, f"webhook {webhook.shown}: {answer.error}", answered=answer.status)
        data = {"webhook": webhook.shown, "answered": answer.status, "id": body["id"]}
        run.out.one(data, lambda: run.out.line(f"{webhook.shown} answered {answer.status}"))


def _chosen(numbers: list[int] | None, everything: bool) -> None:
    if bool(numbers) == everything:
        raise CommandError(USAGE, "give the numbers of notifications, or --all")
