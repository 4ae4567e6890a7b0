# SPDX-License-Identifier: Apache-2.0
"""Translates exceptions of Iceberg, Spark and py4j into the outcomes of ``lake.errors``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lake.errors import CommitUnknown, Conflict, LakefoldError, Rejected, TableGone, Transient
from lake.formats.iceberg.session import DRIVERS

_PACKAGE = "org.apache.iceberg.exceptions."
VALIDATION = f"{_PACKAGE}ValidationException"
#: the catalog refused to replace the metadata
COMMIT_FAILED = f"{_PACKAGE}CommitFailedException"
_NO_TABLE = (f"{_PACKAGE}NoSuchTableException", f"{_PACKAGE}NoSuchNamespaceException")
_NO_CLASS = ("java.lang.ClassNotFoundException", "java.lang.NoClassDefFoundError")
#: the beginning of Java's message if no JDBC driver knows the address
_NO_DRIVER = "No suitable driver"
_MAX_DEPTH = 20


def java_causes(error: BaseException) -> list[tuple[str, str]]:
    """Return class name and message of every Java cause of ``error``, outermost first. A Python error has none."""
    # PySpark turns some Java exceptions into its own, which keep the original.
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    chain: list[tuple[str, str]] = []
    while java is not None and len(chain) < _MAX_DEPTH:
        chain.append((java.getClass().getName(), str(java.getMessage() or "")))
        java = java.getCause()
    return chain


def is_commit_refused(error: BaseException) -> bool:
    """True if ``error`` is the catalog's refusal of a commit, which then was not made."""
    causes = java_causes(error)
    return bool(causes) and causes[0][0] == COMMIT_FAILED


def translated(error: BaseException, name: str, doing: str, *, committing: bool = False) -> LakefoldError:
    """Return the outcome for ``error``, raised while ``doing`` something with the table ``name``.

    With ``committing``, the catalog was called to commit: every error except its refusal leaves the result unknown.
    """
    if isinstance(error, LakefoldError):
        return error
    causes = java_causes(error)
    text = next((f"{one.rpartition('.')[2]}: {message.splitlines()[0]}" for one, message in causes if message), "")
    line = text[:500] or f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    if committing:
        return CommitUnknown(f"{name}: the result of the commit is unknown ({line})")
    names = [one for one, _ in causes]
    if VALIDATION in names[:1]:
        return Conflict(f"{name}: a writer was faster ({line})")
    if names and names[0] in _NO_TABLE:
        return TableGone(f"{name}: the catalog no longer has the table ({line})")
    if any(one in _NO_CLASS for one in names):
        return Rejected(
            f'{name}: Spark lacks a class while {doing} ({line}); add the jar that has it to "spark.jars.packages" in '
            "[spark]"
        )
    if any(message.startswith(_NO_DRIVER) for _, message in causes):
        return Rejected(
            f"{name}: Spark lacks the catalog's JDBC driver ({line}); in [spark], add the driver to "
            f'"spark.jars.packages", beside Iceberg\'s package: {" or ".join(DRIVERS.values())}'
        )
    return Transient(f"{name}: failed while {doing} ({line})")


@contextmanager
def translated_errors(name: str, doing: str) -> Iterator[None]:
    """Translate every exception in the block into an outcome; not for the commit itself."""
    try:
        yield
    except LakefoldError:
        raise
    except Exception as error:
        raise translated(error, name, doing) from error
