# SPDX-License-Identifier: Apache-2.0
"""Translates exceptions of Hudi, Spark and py4j into the outcomes of ``lake.errors``, by the cause chain."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lake.errors import CommitUnknown, Conflict, Integrity, LakefoldError, Rejected, SessionSpoiled, Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.lock_settings.lock_journal import LockJournal
from lake.formats.hudi.lock_settings.providers import describe_provider_lock, lock_file_path
from lake.model import TableRef
from lake.storage import s3

_CONFLICT = (
    "org.apache.hudi.exception.HoodieWriteConflictException",
    "org.apache.hudi.exception.HoodieClusteringUpdateException",
    "java.util.ConcurrentModificationException",
)
_LOCK = "org.apache.hudi.exception.HoodieLockException"
_VALIDATION = "org.apache.hudi.exception.HoodieValidationException"
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_SPARK_GONE = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
_NO_CLASS = ("java.lang.ClassNotFoundException", "java.lang.NoClassDefFoundError")
_NO_BUCKET = "org.apache.hadoop.fs.s3a.UnknownStoreException"
#: Hudi's message when it lists a base file without a file id in its name
_NO_FILE_ID = "element cannot be mapped to a null key"
_OUT_OF_BOUNDS = "java.lang.ArrayIndexOutOfBoundsException"
#: the method that creates a record of the metadata table, with a schema that is compared by identity
_METADATA_RECORD = "org.apache.hudi.metadata.HoodieMetadataPayload.getInsertValue("
_METADATA_TABLE = "at org.apache.hudi.metadata."
#: a Java exception without message and frames, which the JVM omits in hot methods
_WITHOUT_FRAMES = re.compile(rf"{re.escape(_OUT_OF_BOUNDS)}\s*(\n(?!\s*at )|\Z)")
_MAX_DEPTH = 20
#: the frames of a Java stack in which an instant completes
_COMPLETING = re.compile(r"ActiveTimeline\w*\.\w*[cC]omplete\w*\(")
#: the frames of a Java stack in which a pending plan becomes inflight
_BEGINNING = re.compile(r"ActiveTimeline\w*\.transition\w*ToInflight\(")
_EXISTS = "FileAlreadyExistsException"
#: the frame of a Java stack in which Hudi requires that a clustering is not inflight
_REQUIRING_REQUESTED = "SparkExecuteClusteringCommitActionExecutor.<init>("

Cause = tuple[str, str]
"""Class name and message of one link of a Java cause chain."""


def java_cause_chain(error: BaseException) -> list[Cause]:
    """Return class name and message of every Java cause of ``error``, outermost first. A Python error has none."""
    chain: list[Cause] = []
    java: Any = getattr(error, "java_exception", None)
    while java is not None and len(chain) < _MAX_DEPTH:
        chain.append((java.getClass().getName(), str(java.getMessage() or "")))
        java = java.getCause()
    return chain


def root_message(error: BaseException, chain: Sequence[Cause]) -> str:
    """Return the innermost non-empty message as one line."""
    for name, message in reversed(chain):
        lines = [line for line in message.splitlines() if line.strip()]
        if lines:
            return f"{name.rsplit('.', 1)[-1]}: {lines[0].strip()[:300]}"
    if chain:
        return chain[-1][0]
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def is_unanswered(error: BaseException) -> bool:
    """True if the Java process did not answer a call. The call may still run: see ``jvm.java_thread``."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    if isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)):
        return True
    # An error raised in the JVM has a Java exception or a trace; without an answer py4j gives neither.
    return (
        isinstance(error, Py4JError)
        and not isinstance(error, Py4JJavaError)
        and str(error).startswith("An error occurred while calling")
        and "Trace:" not in str(error)
    )


def stack_trace(error: BaseException) -> str:
    """Return the Java stack of ``error`` with its causes and failed tasks; '' if there is none."""
    # PySpark turns some Java exceptions into its own, which keep the original.
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext

    if not isinstance(java, JavaObject):
        return ""
    context = SparkContext._active_spark_context
    if context is None:
        return ""
    return str(context._jvm.org.apache.commons.lang3.exception.ExceptionUtils.getStackTrace(java))


def is_session_spoiled(trace: str) -> bool:
    """True if a Java stack shows a JVM that can no longer create records of a metadata table.

    Hudi takes the field offsets of such a record from one schema and compares schemas by identity. If another object
    for the same schema was used first in a JVM, every write to a metadata table fails until the JVM ends. After many
    failures Java omits message and frames; the surrounding frames then decide.
    """
    if _OUT_OF_BOUNDS not in trace:
        return False
    return _METADATA_RECORD in trace or (_METADATA_TABLE in trace and _WITHOUT_FRAMES.search(trace) is not None)


def is_begun_before(error: BaseException) -> bool:
    """True if Hudi failed with ``error`` to begin a plan, before it made the plan inflight.

    If the plan is inflight nevertheless, another process has just begun it.
    """
    trace = stack_trace(error)
    return _REQUIRING_REQUESTED in trace or (_EXISTS in trace and _BEGINNING.search(trace) is not None)


def can_have_committed(error: BaseException) -> bool:
    """True if Hudi's commit may have completed an instant when it failed with ``error``.

    Earlier failures (the update of the metadata table, a writer's validator) leave no commit.
    """
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        return True
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return True
    trace = str(context._jvm.org.apache.commons.lang3.exception.ExceptionUtils.getStackTrace(java))
    return bool(_COMPLETING.search(trace))


def describe_lock(table: TableRef) -> str:
    """Describe where the table's lock is, its holder if visible, and how it expires or is removed."""
    path = lock_file_path(table)
    return (
        describe_provider_lock(table)
        if path is None
        else LockJournal(TableStorage(table.location).base, path).describe_lock()
    )


def is_disk_full(error: BaseException) -> bool:
    """True if the storage had no space left."""
    messages = " ".join([str(error), *(message for _, message in java_cause_chain(error))])
    return any(text in messages for text in _DISK_FULL)


def translate_error(error: BaseException, table: TableRef, doing: str, *, committing: bool = False) -> LakefoldError:
    """Return the outcome for ``error``, raised while ``doing``.

    ``committing`` is True if the table's commit had been called: an unclear result is then CommitUnknown.
    """
    if isinstance(error, LakefoldError):
        return error
    unclear = CommitUnknown if committing else Transient
    if is_unanswered(error):
        return unclear(f"{table.name}: Spark's Java process did not answer while {doing}")
    chain = java_cause_chain(error)
    names = [name for name, _ in chain]
    messages = " ".join([*(message for _, message in chain), str(error) if not chain else ""])
    line = root_message(error, chain)
    if any(name in _CONFLICT for name in names):
        return Conflict(f"{table.name}: a writer was faster while {doing} ({line})")
    if any(name in _NO_CLASS for name in names):
        missing = Rejected if not committing else CommitUnknown
        return missing(
            f"{table.name}: Spark lacks a class while {doing} ({line}); add the jar that has it to "
            '"spark.jars.packages" in [spark] (for tables on S3: docs/object-stores.md)'
        )
    if _NO_BUCKET in names and not committing:
        return Rejected(f"{table.name}: {line}; correct the location, or {s3.PREFIX}endpoint")
    if _LOCK in names:
        return Transient(f"{table.name}: the table's lock was not free while {doing}; {describe_lock(table)}")
    if _VALIDATION in names:
        return Integrity(f"{table.name}: Hudi's pre-commit validation refused the new files while {doing} ({line})")
    if is_disk_full(error):
        return unclear(f"{table.name}: the disk is full ({line}); free space for the new files, then it is retried")
    if any(text in messages for text in _SPARK_GONE):
        return unclear(f"{table.name}: Spark was stopped while {doing}")
    if isinstance(error, PermissionError) or "java.nio.file.AccessDeniedException" in names:
        refused = CommitUnknown if committing else Rejected
        return refused(
            f"{table.name}: permission denied while {doing} ({line}); give lakefold write access to the table"
        )
    if is_session_spoiled(stack_trace(error)):
        spoiled = CommitUnknown if committing else SessionSpoiled
        return spoiled(
            f"{table.name}: Hudi can no longer make records of the metadata table in this JVM while {doing} ({line}, "
            "in HoodieMetadataPayload.getInsertValue); Spark's session is restarted"
        )
    if _NO_FILE_ID in messages and (path := _first_foreign_file(table)) is not None:
        return unclear(
            f"{table.name}: Hudi can't list a partition while {doing}, since {path} in it is not a file of Hudi's; "
            "move it out of the table"
        )
    return unclear(f"{table.name}: failed while {doing} ({line})")


def _first_foreign_file(table: TableRef) -> str | None:
    """Return the first foreign file in a partition of the table; None if there is none, or if the listing fails."""
    with suppress(LakefoldError, OSError):
        return next(iter(TableStorage(table.location).list_table_files().foreign_files), None)
    return None


@contextmanager
def translated_errors(table: TableRef, doing: str) -> Iterator[None]:
    """Translate every exception in the block into an outcome; not for the commit itself."""
    try:
        yield
    except LakefoldError:
        raise
    except Exception as error:
        raise translate_error(error, table, doing) from error
