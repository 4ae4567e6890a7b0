# SPDX-License-Identifier: Apache-2.0
"""The files of a version's partitions: the outputs of the rewrite, and links to the files that are not rewritten."""

from collections.abc import Iterable, Mapping, Sequence
from posixpath import basename

from lake.errors import Conflict, Integrity
from lake.formats.hive.commit.preconditions import PartitionSnapshot
from lake.formats.hive.commit.version_names import location_in_version
from lake.formats.hive.files.listing import ListedFile, list_partition_files
from lake.model import partition_label
from lake.ports import Rewrite
from lake.storage.filesystems import file_io_of
from lake.storage.locations import hadoop_uri, resolve_path


class VersionFiles:
    """The partitions in the version of one rewrite before its commit, when no reader sees them.

    ``partitions`` are the partitions as they were when the plan was prepared.
    """

    def __init__(self, rewrite: Rewrite, partitions: Mapping[str, PartitionSnapshot]) -> None:
        self._rewrite, self._ref = rewrite, rewrite.prepared.plan.table
        self._files = file_io_of(self._ref.location)
        #: by partition: the files that must be there, paths with bytes
        self._expected: dict[str, dict[str, int]] = {name: {} for name in partitions}
        #: the partitions as they were when all of their files had been linked
        self.partitions = dict(partitions)
        #: the partitions that must stay out of the commit, each with the reason
        self.left_out: dict[str, str] = {}

    def fill(self) -> None:
        """Move the outputs into the version's partitions, and link the files that are not rewritten."""
        prepared = self._rewrite.prepared
        rewritten = {
            resolve_path(self._ref.location, str(item.path))
            for index in prepared.live_groups
            for item in prepared.plan.groups[index].slices
        }
        for name, seen in self.partitions.items():
            self._link_files(name, seen, seen.files.keys() - rewritten)
        for output in self._rewrite.outputs:
            source = resolve_path(self._ref.location, output.path)
            target = f"{self._partition_directory(output.partition)}/{basename(source)}"
            try:
                self._files.copy_permissions(source, next(iter(self.partitions[output.partition].files)))
                self._files.sync(source)
                self._files.rename(source, target)
            except FileNotFoundError as error:
                raise Conflict(f"the outputs of {prepared.instant} were withdrawn") from error
            self._expected[output.partition][target] = output.bytes

    def rebase_on(self, current: Mapping[str, PartitionSnapshot]) -> bool:
        """Leave out partitions that have changed, and link added files. Returns True if no file was added.

        Raises Conflict if no partition is left.
        """
        is_still = True
        for name, before in list(self.partitions.items()):
            difference = before.difference(current.get(name))
            if difference is not None:
                self.left_out[name] = f"{partition_label(name)} changed before the commit: {difference}"
                self._files.remove_own_tree(self._partition_directory(name))
                del self.partitions[name], self._expected[name]
            elif current[name].files.keys() != before.files.keys():
                self._link_files(name, current[name], current[name].files.keys() - before.files.keys())
                self.partitions[name] = current[name]
                is_still = False
        if not self.partitions:
            raise Conflict(next(iter(self.left_out.values())))
        return is_still

    def verified_files(self) -> Mapping[str, Sequence[ListedFile]]:
        """Return the files of each partition. Raises Integrity if they are not exactly the files that must be there."""
        places = [
            seen.partition.with_location(hadoop_uri(self._partition_directory(name)))
            for name, seen in self.partitions.items()
        ]
        found = {listing.partition.name: listing.files for listing in list_partition_files(self._ref.name, places)}
        for name, files in found.items():
            if {file.path: file.bytes for file in files} != self._expected[name]:
                raise Integrity(f"{self._partition_directory(name)} does not contain exactly the files written for it")
            self._files.sync(self._partition_directory(name))
        return found

    def _partition_directory(self, name: str) -> str:
        return resolve_path(self._ref.location, location_in_version(self._rewrite.prepared.instant, name))

    def _link_files(self, name: str, partition: PartitionSnapshot, paths: Iterable[str]) -> None:
        """Give files that are not rewritten a second name in the version."""
        for path in paths:
            target = f"{self._partition_directory(name)}/{basename(path)}"
            try:
                self._files.link_or_copy(path, target)
            except FileNotFoundError as error:
                raise Conflict(f"{path} or the version is gone") from error
            except FileExistsError as error:
                raise Conflict(f"{target} is there already") from error
            self._expected[name][target] = partition.files[path][0]
