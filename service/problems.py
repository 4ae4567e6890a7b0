# SPDX-License-Identifier: Apache-2.0
"""Exit codes and errors: the documented codes, and errors as one line or as a problem object (RFC 9457)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from lake.errors import Conflict, Integrity, LakefoldError, Rejected, Transient, one_line
from lake.redaction import redact


class ExitCode(IntEnum):
    """The exit codes of every command; ``docs/scripting.md`` repeats them for people."""

    OK = 0
    ERROR = 1
    USAGE = 2
    PARTIAL = 3
    PENDING = 4
    NOT_FOUND = 10
    LIVE_PLAN = 11
    HALTED = 12
    DATABASE = 13
    INTERRUPTED = 130


EXIT_CODE_MEANING: Mapping[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.ERROR: "error",
    ExitCode.USAGE: "wrong usage",
    ExitCode.PARTIAL: "done in part, or a difference was found",
    ExitCode.PENDING: "work is pending (only with --exit-code)",
    ExitCode.NOT_FOUND: "no such table, partition, plan or file",
    ExitCode.LIVE_PLAN: "a live plan holds every requested partition",
    ExitCode.HALTED: "the table is halted, paused, in a mode without plans, or in use under another name",
    ExitCode.DATABASE: "database unreachable or its schema is behind, or the service at --url unreachable",
    ExitCode.INTERRUPTED: "interrupted",
}
_ALWAYS = (ExitCode.OK, ExitCode.ERROR, ExitCode.USAGE, ExitCode.INTERRUPTED)


def exit_codes_help(*more: ExitCode) -> str:
    """Return the last paragraph of a help text: the codes of every command and ``more``, each with its meaning."""
    lines = (f"{code.value:>5}  {EXIT_CODE_MEANING[code]}" for code in sorted({*_ALWAYS, *more}))
    return "\n".join(["\b", "Exit codes:", *lines])  # \b keeps the lines as they are


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of error: its heading in ``docs/problems.md``, title, exit code and HTTP status."""

    slug: str
    title: str
    code: ExitCode
    status: int


ERROR = Problem("error", "The command failed", ExitCode.ERROR, 500)
USAGE = Problem("usage", "The command line or the request is wrong", ExitCode.USAGE, 400)
CONFIGURATION = Problem("configuration", "The configuration is wrong", ExitCode.ERROR, 500)
BAD_SETTING = Problem("setting", "A setting of the request is wrong", ExitCode.USAGE, 422)
NOT_FOUND = Problem("not-found", "Not found", ExitCode.NOT_FOUND, 404)
LIVE_PLAN = Problem("live-plan", "A live plan holds the partitions", ExitCode.LIVE_PLAN, 409)
NOT_SERVED = Problem(
    "not-served",
    "The table is halted, paused, in a mode without plans, or in use under another name",
    ExitCode.HALTED,
    409,
)
DATABASE = Problem("database", "The database can't be used", ExitCode.DATABASE, 503)
REJECTED = Problem("rejected", "The table can't be used as configured", ExitCode.ERROR, 422)
CONFLICT = Problem("conflict", "The current state does not allow this change", ExitCode.ERROR, 409)
TRANSIENT = Problem("transient", "This may succeed if tried again", ExitCode.ERROR, 503)
INTEGRITY = Problem("integrity", "An integrity check failed", ExitCode.ERROR, 500)
INTERRUPTED = Problem("interrupted", "Interrupted", ExitCode.INTERRUPTED, 499)
UNAUTHENTICATED = Problem("unauthenticated", "A valid token is needed", ExitCode.ERROR, 401)
FORBIDDEN = Problem("forbidden", "The token does not allow this", ExitCode.ERROR, 403)
METHOD_NOT_ALLOWED = Problem("method", "This path does not allow the method", ExitCode.USAGE, 405)
BODY_TIMEOUT = Problem("too-slow", "The body did not come in time", ExitCode.ERROR, 408)
BODY_TOO_LARGE = Problem("too-large", "The body is too large", ExitCode.USAGE, 413)
WRONG_HOST = Problem("host", "The service does not answer to this name", ExitCode.USAGE, 421)
INVALID_FIELD = Problem("invalid", "A field of the request is wrong", ExitCode.USAGE, 422)
TOO_MANY_REQUESTS = Problem("too-many", "Too many requests", ExitCode.ERROR, 429)
UNREACHABLE = Problem("unreachable", "The service can't be reached", ExitCode.DATABASE, 502)
PROBLEMS = (
    ERROR,
    USAGE,
    CONFIGURATION,
    BAD_SETTING,
    NOT_FOUND,
    LIVE_PLAN,
    NOT_SERVED,
    DATABASE,
    REJECTED,
    CONFLICT,
    TRANSIENT,
    INTEGRITY,
    INTERRUPTED,
    UNAUTHENTICATED,
    FORBIDDEN,
    METHOD_NOT_ALLOWED,
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    WRONG_HOST,
    INVALID_FIELD,
    TOO_MANY_REQUESTS,
    UNREACHABLE,
)

PROBLEM_BASE = "docs/problems.md#"


class ServiceError(LakefoldError):
    """An error of the service itself.

    Each class names its ``problem``; ``facts`` are values for scripts; ``problems`` are the lines of an error that has
    several causes.
    """

    problem: Problem = ERROR
    facts: Mapping[str, Any] = MappingProxyType({})
    problems: Sequence[str] = ()


class ProblemError(ServiceError):
    """An error for the person or program that made a request: one line, and the kind of problem."""

    def __init__(self, problem: Problem, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.problem = problem
        self.facts = facts


def classify(error: BaseException) -> Problem:
    """Return the kind of problem of ``error``; ``ERROR`` for an unexpected error."""
    if isinstance(error, ServiceError):
        return error.problem
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    for kinds, problem in ((Rejected, REJECTED), (Conflict, CONFLICT), (Transient, TRANSIENT), (Integrity, INTEGRITY)):
        if isinstance(error, kinds):
            return problem
    return ERROR


def describe_error(error: BaseException) -> str:
    """Return one line about ``error`` for the person or program that made the request.

    The text of a ValueError describes the caller's own input, so it is shown in full, without secrets.
    """
    text = " ".join(str(error).split())
    return redact(text) if text and isinstance(error, ValueError) else one_line(error)


def error_lines(error: BaseException) -> list[str]:
    """Return one line for each cause of ``error``, for a person."""
    causes = error.problems if isinstance(error, ServiceError) else ()
    return [redact(cause) for cause in causes] or [describe_error(error)]


def problem_document(error: BaseException) -> dict[str, Any]:
    """Return ``error`` as an RFC 9457 object, with the exit code and the facts of the error."""
    problem = classify(error)
    return {
        "type": PROBLEM_BASE + problem.slug,
        "title": problem.title,
        "status": problem.status,
        "detail": describe_error(error),
        "exit_code": problem.code.value,
        **(error.facts if isinstance(error, ServiceError) else {}),
    }
