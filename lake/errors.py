# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a plan's step that did not succeed, each with one consequence.

The format adapter turns every error that an executor can meet into one of these classes,
so that the worker decides by the type, never by the message.
"""

from collections.abc import Collection, Mapping

from lake.redaction import redact

#: an error of a JVM can be a page long; its beginning names the cause
_MOST_CHARACTERS = 2000


class LakefoldError(Exception):
    """Base of every error lakefold raises on purpose; its text is one line for a person."""


class Transient(LakefoldError):
    """May succeed if tried again: the plan is due again after a backoff, and fails after ``max_attempts``."""


class SessionSpoiled(Transient):
    """All work of this kind fails in the process's Spark session and would succeed in another session.

    The session is restarted. The first such attempt of a plan in a process does not count against ``max_attempts``.
    """


class EarlierAttemptPending(Transient):
    """The plan's instant is pending on the table already, and a writer of the table may be executing it.

    An earlier attempt created the instant, or the plan adopted it. The plan waits until the writer commits the work or
    gives it up; the attempt does not count against ``max_attempts``.
    """


class TableHalted(Transient):
    """The table was halted while the plan ran: the plan waits for ``resume``, and the attempt does not count."""


class Conflict(LakefoldError):
    """The inputs changed under the plan: it is cancelled and the next scan plans again."""


class CommitUnknown(LakefoldError):
    """The commit may or may not have succeeded: the plan stays inflight, nothing is deleted, the table is checked."""


class LeaseLost(LakefoldError):
    """Another executor owns the plan now (a newer epoch): stop, and write nothing to the database."""


class Rejected(LakefoldError):
    """The plan or its table can't be used as configured: failed, no retry."""


class TableRefused(Rejected):
    """The table can't be changed in its present state, whatever the plan.

    The plan is cancelled, and planned again once a scan accepts the table. An instant that it adopted is adopted again.
    """


class TableGone(Rejected):
    """The table no longer exists, though the storage answers; an unmounted or forbidden storage does not raise this.

    A plan of such a table that may have committed stays inflight until an operator requests its cancellation.
    """


class EngineUnavailable(Rejected):
    """An engine can't run in this installation, whatever it rewrites, since the executors lack a requirement of the
    engine."""


class Integrity(LakefoldError):
    """The written rows differ from the rows read, or a commit can't be trusted.

    The plan is failed unless it committed. ``partitions``, or else the table, are halted until ``resume``; each of them
    has the reason of its halt, which is ``text`` if only their names are given.
    """

    def __init__(self, text: str, *, partitions: Mapping[str, str] | Collection[str] = ()) -> None:
        super().__init__(text)
        self.partitions: Mapping[str, str] = (
            dict(partitions) if isinstance(partitions, Mapping) else dict.fromkeys(partitions, text)
        )


class CommitLost(Integrity):
    """The table names the plan's commit, but its files are gone, or the commit removed a writer's committed work.

    The plan is failed, and ``partitions`` or else the table are halted, since no later check can help.

    ``partitions`` are the partitions that are read from missing files. They are empty if unknown.
    """

    def __init__(self, text: str, plan_id: str = "", partitions: Collection[str] = ()) -> None:
        super().__init__(text, partitions=partitions)
        self.plan_id = plan_id


class CancelRequested(LakefoldError):
    """An operator requested cancellation of the plan, and its executor complies before the commit."""


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text, since libraries append explanations; its class if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(error: BaseException) -> str:
    """Return ``error`` as one line without secrets; an error that is not lakefold's has its class before the text."""
    if isinstance(error, OSError) and error.strerror:
        return redact(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    is_own = isinstance(error, LakefoldError)
    # A Conflict carries the groups that it leaves out as its second argument; they are not meant for a person.
    text = redact(" ".join(str(error.args[0] if is_own and error.args else error).split()))[:_MOST_CHARACTERS]
    if is_own:
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}".removesuffix(": ")
