# SPDX-License-Identifier: Apache-2.0
"""What commits did, kept beside the versions that they made: the record of a commit and the markers beside it.

A commit is one call of the metastore: it gives partitions their new places and, in the same call, properties that
name plan, epoch and version. What the plan wrote and replaced is more than a property holds. It is written into the
version's directory before the call, and is a commit only where a partition names the version. The next commit of a
partition takes that name away; before it does, it files what it finds there under the plan's id, where it stays.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.errors import Integrity, Transient
from lake.formats.hive.catalog.tables import LEGACY_DATA_DIR
from lake.formats.hive.commit.version_names import (
    ATTEMPTS_DIR,
    RECORD_FILE,
    data_dir,
    data_dirs,
    is_version_name,
    plan_id_of,
    version_directory,
    version_started_ns,
)
from lake.metastore import MetastoreTable
from lake.model import TableRef
from lake.plan import STAGED_WATCH_PERIOD, Commit, LocatedFile, OutputFile, Relocation, SupersededVersion
from lake.storage.filesystems import file_io_of

log = logging.getLogger(__name__)

#: a day less than what is staged is looked for, so that the sweep still finds it afterwards
_IN_FLIGHT_FOR = STAGED_WATCH_PERIOD - timedelta(days=1)

_ARCHIVE_DIR = "_commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """A commit, made or not, and the partitions that it moves."""

    commit: Commit
    partitions: tuple[str, ...]
    #: when the table was made that the commit was of, in seconds; None of a commit of an earlier release
    table_created_at: int | None = None
    #: when this was written, right before the call, by the storage's clock; 0 of one that was not read from there
    written_ns: int = 0


def migrate_legacy_data_dir(ref: TableRef) -> None:
    """Take the filed commits out of the directory that earlier releases used, and remove it once it is empty.

    Impala reads what is in there as files of a table without partitions.
    """
    files, before = file_io_of(ref.location), f"{ref.location}/{LEGACY_DATA_DIR}"
    if not files.exists(before):
        return
    with suppress(FileNotFoundError):
        entries = list(files.list(f"{before}/{_ARCHIVE_DIR}"))
        _create_record_archive(ref)
        for entry in entries:
            with suppress(FileNotFoundError):
                files.rename(entry.path, f"{data_dir(ref)}/{_ARCHIVE_DIR}/{entry.name}")
        files.sync(f"{data_dir(ref)}/{_ARCHIVE_DIR}")
    for directory in (f"{before}/{_ARCHIVE_DIR}", before):
        with suppress(OSError):
            files.remove_empty_directory(directory)


def write_record(ref: TableRef, record: CommitRecord) -> None:
    """Keep what a commit is going to do; it is on disk afterwards."""
    commit = record.commit
    document = {
        "plan": commit.plan_id,
        "epoch": commit.epoch,
        "version": commit.instant,
        "partitions": record.partitions,
        "outputs": [asdict(output) for output in commit.outputs],
        "superseded": [
            {**asdict(one), "modified_at": one.modified_at and one.modified_at.isoformat()} for one in commit.superseded
        ],
        "moves": [_relocation_document(one) for one in commit.relocations],
        "table_made_at": record.table_created_at,
    }
    is_version = is_version_name(commit.instant)
    path = f"{data_dir(ref)}/{commit.instant}/{RECORD_FILE}" if is_version else _archive_path(ref, commit.instant)
    file_io_of(ref.location).write(path, json.dumps(document).encode())


def read_record(ref: TableRef, version: str) -> CommitRecord | None:
    """What is kept in a version's directory; None where nothing is."""
    found = (_load_record(ref, f"{home}/{version}/{RECORD_FILE}") for home in data_dirs(ref))
    return next((record for record in found if record is not None), None)


def write_relocation_record(
    ref: TableRef, move: Relocation, plan_id: str, previous_files: Sequence[LocatedFile], table: MetastoreTable
) -> None:
    """Keep what a move that no plan makes is going to do; it is on disk afterwards."""
    replaced = tuple(
        SupersededVersion(
            partition=move.partition,
            path=file.path,
            bytes=file.bytes,
            instant=move.token,
            modified_at=datetime.fromtimestamp(file.modified_ms / 1000, UTC),
        )
        for file in previous_files
    )
    _create_record_archive(ref)
    commit = Commit(plan_id=plan_id, instant=move.token, outputs=(), superseded=replaced, relocations=(move,))
    write_record(ref, CommitRecord(commit=commit, partitions=(move.partition,), table_created_at=table.created_at))


def list_records(ref: TableRef) -> tuple[set[str], set[str]]:
    """The versions there are, and under which ids of plans, or tokens of moves, something is filed."""
    files, versions, stems = file_io_of(ref.location), set[str](), set[str]()
    for home in data_dirs(ref):
        with suppress(FileNotFoundError):
            versions |= {entry.name for entry in files.list(home) if is_version_name(entry.name)}
        with suppress(FileNotFoundError):
            names = {entry.name for entry in files.list(f"{home}/{_ARCHIVE_DIR}")}
            stems |= {name.removesuffix(".json") for name in names if name.endswith(".json")}
    return versions, stems


def mark_committed(ref: TableRef, version: str) -> None:
    """Note that the call of a commit was made: its partitions may be dropped before another database hears of it."""
    with suppress(OSError):
        _create_record_archive(ref)
        file_io_of(ref.location).write(_committed_marker_path(ref, version), b"")


def is_marked_committed(ref: TableRef, version: str) -> bool:
    """Whether it is noted that the call of a version's commit was made."""
    old = archived_record(ref, plan_id_of(version))
    return (old is not None and old.commit.instant == version) or file_io_of(ref.location).exists(
        _committed_marker_path(ref, version)
    )


def mark_cleaning(ref: TableRef, partitions: Mapping[str, Collection[str]]) -> None:
    """Note, by the token of a move, in which of its partitions what it replaced is about to be deleted.

    Else a database that learns of the move later would take what is gone for removed by an overwrite.
    """
    files = file_io_of(ref.location)
    _create_record_archive(ref)
    for token, names in partitions.items():
        before = cleaned_partitions(ref, token)
        if not before.issuperset(names):
            files.write(_cleaning_marker_path(ref, token), json.dumps(sorted(before.union(names))).encode())


def cleaned_partitions(ref: TableRef, token: str) -> frozenset[str]:
    """The partitions in which the deletion of what a move replaced has begun."""
    with suppress(FileNotFoundError):
        return frozenset(json.loads(file_io_of(ref.location).read(_cleaning_marker_path(ref, token))))
    return frozenset()


def archived_record(ref: TableRef, record_id: str) -> CommitRecord | None:
    """The commit that was filed under a plan's id; None where none was."""
    here, before = (f"{home}/{_ARCHIVE_DIR}/{record_id}.json" for home in data_dirs(ref))
    # It may be on its way from the former directory to the other one, and is in one of them at any time.
    return (
        _load_record(ref, here)
        or _load_record(ref, before)
        or (_load_record(ref, here) if _has_legacy_data_dir(ref) else None)
    )


def is_cleaned(ref: TableRef, token: str, partition: str) -> bool:
    """Whether the deletion of what a move replaced in a partition has begun, or ended before the move was forgotten."""
    return partition in cleaned_partitions(ref, token) or token in pruned_tokens(ref)


def pruned_tokens(ref: TableRef) -> frozenset[str]:
    """The tokens of moves of which nothing is filed any more, since all that they replaced was deleted long ago."""
    with suppress(FileNotFoundError):
        return frozenset(json.loads(file_io_of(ref.location).read(_pruned_tokens_path(ref))))
    return frozenset()


def mark_pruned(ref: TableRef, tokens: Collection[str]) -> None:
    """Note which moves are about to be forgotten: a database that is set back to before that still knows them.

    Else it would take what late writers add to their places for an overwrite of what it expects there.
    """
    before = pruned_tokens(ref)
    if not before.issuperset(tokens):
        file_io_of(ref.location).write(_pruned_tokens_path(ref), json.dumps(sorted(before.union(tokens))).encode())


def remove_archived_record(ref: TableRef, token: str) -> None:
    """Remove what is filed of a move, and the notes about it."""
    files = file_io_of(ref.location)
    stem = plan_id_of(token) if version_started_ns(token) is not None else token
    for home in data_dirs(ref):
        for name in (f"{token}.made", f"{token}.cleaned", f"{stem}.json"):
            files.remove_own_file(f"{home}/{_ARCHIVE_DIR}/{name}")


def archived_record_of_token(ref: TableRef, token: str) -> CommitRecord | None:
    """What is filed under the name that a move's commit has; it may be another attempt's at its plan."""
    return archived_record(ref, plan_id_of(token) if version_started_ns(token) is not None else token)


def has_lakefold_files(ref: TableRef, version: str) -> bool:
    """Whether a version that is there has what an attempt or its commit puts into it."""
    files = file_io_of(ref.location)
    return any(
        files.exists(f"{home}/{version}/{name}") for home in data_dirs(ref) for name in (RECORD_FILE, ATTEMPTS_DIR)
    )


def has_record_archive(ref: TableRef) -> bool:
    """Whether the directory of filed commits is there: else nothing tells that storage is."""
    return file_io_of(ref.location).exists(f"{data_dir(ref)}/{_ARCHIVE_DIR}")


def archive_record(ref: TableRef, version: str) -> None:
    """Keep the commit of a version, which a partition names, under its plan's id."""
    files, document = file_io_of(ref.location), _record_path(ref, version)
    try:
        _create_record_archive(ref)
        files.link_or_copy(document, _archive_path(ref, plan_id_of(version)))
    except FileExistsError:
        return
    except FileNotFoundError:
        # An INSERT OVERWRITE of the whole table removed it with all that the commit was about.
        log.warning("%s: a partition names version %s, but %s is gone", ref.name, version, document)
        return
    files.sync(f"{data_dir(ref)}/{_ARCHIVE_DIR}")
    files.remove_own_file(_committed_marker_path(ref, version))


def can_be_in_flight(ref: TableRef, version: str, now: float) -> bool:
    """Whether the call that commits a version may be under way, of an executor that slept before it for however long.

    Nothing can stop that call. What it makes the table's has to be there then; so such a version stays for days.
    """
    try:
        written = file_io_of(ref.location).status(_record_path(ref, version)).modified_ns
        return now - written / 1e9 < _IN_FLIGHT_FOR.total_seconds()
    except FileNotFoundError:
        return False


def withdraw_record(ref: TableRef, version: str) -> None:
    """Note that the call that commits a version has not been made, or was refused."""
    file_io_of(ref.location).remove_own_file(_record_path(ref, version))


def remove_emptied_version(ref: TableRef, version: str) -> None:
    """Remove a version that no partition is left of; its commit is filed, and found there as long as it is asked for.

    A version with anything else in it than what tasks wrote into stays.
    """
    directory, old = version_directory(ref, version), archived_record(ref, plan_id_of(version))
    if old is None or old.commit.instant != version:
        return
    files = file_io_of(ref.location)
    with suppress(OSError):
        if {entry.name for entry in files.list(directory)} <= {ATTEMPTS_DIR, RECORD_FILE}:
            files.remove_own_tree(f"{directory}/{ATTEMPTS_DIR}")
            files.remove_own_file(_record_path(ref, version))
            files.remove_empty_directory(directory)


def _record_path(ref: TableRef, version: str) -> str:
    return f"{version_directory(ref, version)}/{RECORD_FILE}"


def _archive_path(ref: TableRef, record_id: str) -> str:
    return f"{data_dir(ref)}/{_ARCHIVE_DIR}/{record_id}.json"


def _committed_marker_path(ref: TableRef, version: str) -> str:
    return f"{data_dir(ref)}/{_ARCHIVE_DIR}/{version}.made"


def _cleaning_marker_path(ref: TableRef, token: str) -> str:
    return f"{data_dir(ref)}/{_ARCHIVE_DIR}/{token}.cleaned"


def _pruned_tokens_path(ref: TableRef) -> str:
    return f"{data_dir(ref)}/{_ARCHIVE_DIR}/forgotten"


def _create_record_archive(ref: TableRef) -> None:
    """Make the directory of filed commits, which belongs to whom the table's belongs to."""
    files = file_io_of(ref.location)
    for directory in (data_dir(ref), f"{data_dir(ref)}/{_ARCHIVE_DIR}"):
        with suppress(FileExistsError):
            files.make_directory(directory)
            files.copy_permissions(directory, ref.location)


def _has_legacy_data_dir(ref: TableRef) -> bool:
    return file_io_of(ref.location).exists(f"{ref.location}/{LEGACY_DATA_DIR}")


def _load_record(ref: TableRef, path: str) -> CommitRecord | None:
    files = file_io_of(ref.location)
    try:
        document: Mapping[str, Any] = json.loads(files.read(path))
        return CommitRecord(
            commit=Commit(
                plan_id=document["plan"],
                instant=document["version"],
                outputs=tuple(OutputFile(**one) for one in document["outputs"]),
                superseded=tuple(
                    SupersededVersion(**{**one, "modified_at": datetime.fromisoformat(one["modified_at"])})
                    for one in document["superseded"]
                ),
                epoch=document["epoch"],
                relocations=tuple(_relocation_of(one) for one in document["moves"]),
            ),
            partitions=tuple(document["partitions"]),
            table_created_at=document.get("table_made_at"),
            written_ns=files.status(path).modified_ns,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Transient(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Integrity(f"{path} can't be understood: {error}") from error


def _relocation_document(relocation: Relocation) -> dict[str, Any]:
    """Return a relocation as records keep it. Its keys are older than the names of the fields and must not change."""
    return {
        "partition": relocation.partition,
        "token": relocation.token,
        "left": relocation.previous_location,
        "place": relocation.location,
        "files": [asdict(file) for file in relocation.files],
        "made_at": relocation.partition_created_at,
    }


def _relocation_of(document: Mapping[str, Any]) -> Relocation:
    """Return what ``_relocation_document`` kept."""
    return Relocation(
        partition=document["partition"],
        token=document["token"],
        previous_location=document["left"],
        location=document["place"],
        files=tuple(LocatedFile(**file) for file in document["files"]),
        partition_created_at=document["made_at"],
    )
