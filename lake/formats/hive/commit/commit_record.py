# SPDX-License-Identifier: Apache-2.0
"""The records of commits, stored beside the versions that the commits made, and the markers beside the records.

A commit is one call of the metastore. It gives partitions their new locations and, in the same call, properties that
name plan, epoch and version. The files that the plan wrote and replaced do not fit into a property, so a record in the
version's directory lists them. The record is written before the call, and counts as a commit only if the call was made,
see ``commit_lookup``: as a rule, a partition names the version then. The next commit of a partition replaces that name.
Before that, it archives the record under the earlier plan's id. There the record stays until it is pruned.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.errors import Integrity, Transient
from lake.formats.hive.commit.marker_set import add_to_marker_set, read_marker_set, remove_marker_set
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
from lake.storage.locations import LEGACY_DATA_DIR

log = logging.getLogger(__name__)

#: a day shorter than ``STAGED_WATCH_PERIOD``, so that the sweep still watches the version when this time has passed
_IN_FLIGHT_FOR = STAGED_WATCH_PERIOD - timedelta(days=1)

RECORD_ARCHIVE_DIR = "_commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """A commit, applied or not, and the partitions that it relocates."""

    commit: Commit
    partitions: tuple[str, ...]
    #: when the commit's table was created, in seconds; None in a record of an earlier release
    table_created_at: int | None = None
    #: when the record was written, right before the call, by the storage's clock; 0 if it was not read from storage
    written_ns: int = 0


def migrate_legacy_data_dir(ref: TableRef) -> None:
    """Move archived records out of the directory that earlier releases used, and remove the directory once it is empty.

    Impala reads the files in that directory as files of a table without partitions.
    """
    files, before = file_io_of(ref.location), f"{ref.location}/{LEGACY_DATA_DIR}"
    if not files.exists(before):
        return
    with suppress(FileNotFoundError):
        entries = list(files.list(f"{before}/{RECORD_ARCHIVE_DIR}"))
        create_record_archive(ref)
        for entry in entries:
            with suppress(FileNotFoundError):
                files.rename(entry.path, f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{entry.name}")
        files.sync(f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}")
    for directory in (f"{before}/{RECORD_ARCHIVE_DIR}", before):
        with suppress(OSError):
            files.remove_empty_directory(directory)


def write_record(ref: TableRef, record: CommitRecord) -> None:
    """Write the record of a commit that is about to be made; the record is on disk when this returns."""
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
    """Return the record in a version's directory. None if there is no record."""
    found = (_load_record(ref, f"{directory}/{version}/{RECORD_FILE}") for directory in data_dirs(ref))
    return next((record for record in found if record is not None), None)


def write_relocation_record(
    ref: TableRef, move: Relocation, plan_id: str, previous_files: Sequence[LocatedFile], table: MetastoreTable
) -> None:
    """Write the record of a relocation that is about to be made and that no plan makes; it is on disk on return."""
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
    create_record_archive(ref)
    commit = Commit(plan_id=plan_id, instant=move.token, outputs=(), superseded=replaced, relocations=(move,))
    write_record(ref, CommitRecord(commit=commit, partitions=(move.partition,), table_created_at=table.created_at))


def list_records(ref: TableRef) -> tuple[set[str], set[str]]:
    """Return the versions that exist, and the names of archived records: ids of plans, or tokens of relocations."""
    files, versions, stems = file_io_of(ref.location), set[str](), set[str]()
    for directory in data_dirs(ref):
        with suppress(FileNotFoundError):
            versions |= {entry.name for entry in files.list(directory) if is_version_name(entry.name)}
        with suppress(FileNotFoundError):
            names = {entry.name for entry in files.list(f"{directory}/{RECORD_ARCHIVE_DIR}")}
            # A name with a dot belongs to a record whose writer was killed, or is still at work.
            stems |= {name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != "."}
    return versions, stems


def mark_committed(ref: TableRef, version: str) -> None:
    """Mark that the call of a commit was made.

    The commit's partitions may be dropped before another database learns of the commit.
    """
    files, marker = file_io_of(ref.location), _committed_marker_path(ref, version)
    with suppress(OSError):
        if not files.exists(marker):  # each look-up that finds the commit marks it
            create_record_archive(ref)
            files.write(marker, b"")


def is_marked_committed(ref: TableRef, version: str) -> bool:
    """True if it is marked that the call of a version's commit was made, or the commit's record is archived."""
    old = archived_record(ref, plan_id_of(version))
    return (old is not None and old.commit.instant == version) or file_io_of(ref.location).exists(
        _committed_marker_path(ref, version)
    )


def mark_cleaning(ref: TableRef, partitions: Mapping[str, Collection[str]]) -> None:
    """Mark, by the token of a relocation, the partitions whose replaced files are about to be deleted.

    Without the mark a database that learns of the relocation later would take the deleted files for files that an
    overwrite removed.
    """
    create_record_archive(ref)
    for token, names in partitions.items():
        add_to_marker_set(ref, _cleaning_marker_path(ref, token), names)


def cleaned_partitions(ref: TableRef, token: str) -> frozenset[str]:
    """Return the partitions in which the deletion of the files that a relocation replaced has begun."""
    return read_marker_set(ref, _cleaning_marker_path(ref, token))


def mark_emptied(ref: TableRef, token: str, partition: str, emptied_ms: int) -> None:
    """Mark, by its last relocation, when a partition's location was emptied before late files arrived.

    Once other files are there, the location looks like one that was overwritten after the late files had arrived.
    """
    create_record_archive(ref)
    add_to_marker_set(ref, _emptied_marker_path(ref, token), {f"{emptied_ms} {partition}"})


def marked_emptied_ms(ref: TableRef, token: str, partition: str) -> int | None:
    """Return the last time that ``mark_emptied`` has marked since a partition's relocation ``token``, if any."""
    marks = (name.partition(" ") for name in read_marker_set(ref, _emptied_marker_path(ref, token)))
    return max((int(at) for at, _, name in marks if name == partition), default=None)


def archived_record(ref: TableRef, record_id: str) -> CommitRecord | None:
    """Return the record that is archived under a plan's id or a relocation's token. None if there is no such record."""
    current, earlier = (f"{directory}/{RECORD_ARCHIVE_DIR}/{record_id}.json" for directory in data_dirs(ref))
    # The record may be moving from the legacy directory to the present one; it is in one of them at any time.
    return (
        _load_record(ref, current)
        or _load_record(ref, earlier)
        or (_load_record(ref, current) if _has_legacy_data_dir(ref) else None)
    )


def is_cleaned(ref: TableRef, token: str, partition: str) -> bool:
    """True if the deletion of the files that a relocation replaced in a partition has begun.

    True as well if the relocation's records were pruned after the deletion.
    """
    return partition in cleaned_partitions(ref, token) or token in pruned_tokens(ref)


def pruned_tokens(ref: TableRef) -> frozenset[str]:
    """Return the tokens of relocations whose records were removed, since all replaced files were deleted long ago."""
    return read_marker_set(ref, _pruned_tokens_path(ref))


def mark_pruned(ref: TableRef, tokens: Collection[str]) -> None:
    """Mark the relocations whose records are about to be removed.

    A database that is restored from an earlier backup still has these relocations. Without the mark it would take
    late files in their locations for an overwrite of the files that it expects there.
    """
    add_to_marker_set(ref, _pruned_tokens_path(ref), tokens)


def remove_archived_record(ref: TableRef, token: str) -> None:
    """Remove the archived record of a relocation, and the markers beside it."""
    files = file_io_of(ref.location)
    stem = plan_id_of(token) if version_started_ns(token) is not None else token
    for directory in data_dirs(ref):
        for name in (f"{token}.made", f"{stem}.json"):
            files.remove_own_file(f"{directory}/{RECORD_ARCHIVE_DIR}/{name}")
        for marker in ("cleaned", "emptied"):
            remove_marker_set(ref, f"{directory}/{RECORD_ARCHIVE_DIR}/{token}.{marker}")


def archived_record_of_token(ref: TableRef, token: str) -> CommitRecord | None:
    """Return the archived record of the commit that made a relocation. None if there is no such record.

    The record may belong to another attempt at the same plan.
    """
    return archived_record(ref, plan_id_of(token) if version_started_ns(token) is not None else token)


def has_lakefold_files(ref: TableRef, version: str) -> bool:
    """True if an existing version contains files that an attempt or its commit writes."""
    files = file_io_of(ref.location)
    return any(
        files.exists(f"{directory}/{version}/{name}")
        for directory in data_dirs(ref)
        for name in (RECORD_FILE, ATTEMPTS_DIR)
    )


def has_record_archive(ref: TableRef) -> bool:
    """True if the directory of archived records exists. If it does not, the storage itself may be missing."""
    return file_io_of(ref.location).exists(f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}")


def archive_record(ref: TableRef, version: str) -> None:
    """Archive the record of a version, which a partition names, under the plan's id."""
    files, document = file_io_of(ref.location), _record_path(ref, version)
    try:
        create_record_archive(ref)
        files.link_or_copy(document, _archive_path(ref, plan_id_of(version)))
    except FileExistsError:
        return
    except FileNotFoundError:
        # An INSERT OVERWRITE of the whole table removed the record together with the commit's files.
        log.warning("%s: a partition names version %s, but %s is gone", ref.name, version, document)
        return
    files.sync(f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}")
    files.remove_own_file(_committed_marker_path(ref, version))


def can_be_in_flight(ref: TableRef, version: str, now: float) -> bool:
    """True if an executor that was suspended before the call that commits a version may still make the call.

    Nothing can stop that call, and readers would then need the version's files. So the version stays for
    ``_IN_FLIGHT_FOR`` after its record was written.
    """
    try:
        written = file_io_of(ref.location).status(_record_path(ref, version)).modified_ns
        return now - written / 1e9 < _IN_FLIGHT_FOR.total_seconds()
    except FileNotFoundError:
        return False


def withdraw_record(ref: TableRef, version: str) -> None:
    """Remove the record of a version, since the call that commits the version was not made or was refused."""
    file_io_of(ref.location).remove_own_file(_record_path(ref, version))


def remove_emptied_version(ref: TableRef, version: str) -> None:
    """Remove a version in which no partition's directory is left. The archive keeps the record of its commit.

    A version stays if it contains anything besides the record and the directory of attempts.
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
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{record_id}.json"


def _committed_marker_path(ref: TableRef, version: str) -> str:
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{version}.made"


def _cleaning_marker_path(ref: TableRef, token: str) -> str:
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{token}.cleaned"


def _emptied_marker_path(ref: TableRef, token: str) -> str:
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/{token}.emptied"


def _pruned_tokens_path(ref: TableRef) -> str:
    return f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}/forgotten"


def create_record_archive(ref: TableRef) -> None:
    """Create the directory of archived records, with the owner and permissions of the table's directory."""
    files = file_io_of(ref.location)
    for directory in (data_dir(ref), f"{data_dir(ref)}/{RECORD_ARCHIVE_DIR}"):
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
    """Return a relocation as a record stores it. The keys are older than the field names and must not change."""
    return {
        "partition": relocation.partition,
        "token": relocation.token,
        "left": relocation.previous_location,
        "place": relocation.location,
        "files": [asdict(file) for file in relocation.files],
        "made_at": relocation.partition_created_at,
    }


def _relocation_of(document: Mapping[str, Any]) -> Relocation:
    """Return the relocation that ``_relocation_document`` has stored."""
    return Relocation(
        partition=document["partition"],
        token=document["token"],
        previous_location=document["left"],
        location=document["place"],
        files=tuple(LocatedFile(**file) for file in document["files"]),
        partition_created_at=document["made_at"],
    )
