# SPDX-License-Identifier: Apache-2.0
"""The six outcomes of a plan's step that did not succeed, each with one consequence.

Every error that an executor meets is turned into one of these before it leaves
the format adapter, so that the worker decides by type and never by message.
"""

from collections.abc import Sequence

from lake.redaction import redact

#: an error of a JVM can be a page; the head of it names the cause
_MOST_CHARACTERS = 2000


class LakefoldError(Exception):
    """Base of every error lakefold raises on purpose; its text is one line for a person."""


class Transient(LakefoldError):
    """May succeed if tried again: the plan returns to requested with a backoff, failed after ``max_attempts``."""


class SessionSpoiled(Transient):
    """Every work of the kind fails in the process's Spark session, and in another one it does not.

    The session is started anew, and the attempt does not count against ``max_attempts``.
    """


class Conflict(LakefoldError):
    """The inputs changed under the plan: it is cancelled and the next scan plans again."""


class CommitUnknown(LakefoldError):
    """The commit may or may not have landed: the plan stays inflight, nothing is deleted, the table is asked."""


class LeaseLost(LakefoldError):
    """Another executor owns the plan now (its epoch moved on): stop silently and touch nothing."""


class Rejected(LakefoldError):
    """The plan or its table can't be served as configured: failed, no retry."""


class TableGone(Rejected):
    """There is no table any more where one was, though the storage answers; an unmounted or forbidden one does not.

    No answer to whether a plan committed either, unless an operator asks to cancel it.
    """


class Integrity(LakefoldError):
    """What was written differs from what was read: failed, and the table is halted until ``resume``."""


class CommitLost(Integrity):
    """The table names the plan's commit, and what that made is gone, or it took away what a writer had committed.

    The plan is failed and the table halted, since no later answer helps.

    ``partitions`` are those that are read from what is gone; empty where that is not known.
    """

    def __init__(self, text: str, plan_id: str = "", partitions: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.plan_id, self.partitions = plan_id, tuple(partitions)


class CancelRequested(LakefoldError):
    """An operator asked to cancel the plan and its executor honours that before the commit."""


def first_line(error: BaseException) -> str:
    """The first line of what ``error`` says, as libraries explain themselves below theirs; its class for silence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(error: BaseException) -> str:
    """``error`` as one line without secrets; what nobody wrote for a person has its class before it."""
    if isinstance(error, OSError) and error.strerror:
        return redact(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    ours = isinstance(error, LakefoldError)
    # A Conflict carries the groups it leaves out as its second argument, which are not for a person.
    text = redact(" ".join(str(error.args[0] if ours and error.args else error).split()))[:_MOST_CHARACTERS]
    if ours:
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}".removesuffix(": ")
