# SPDX-License-Identifier: Apache-2.0
"""What a version's partitions will be read as: the files that were written, and those that come along."""

from collections.abc import Iterable, Mapping, Sequence
from posixpath import basename

from lake.errors import Conflict, Integrity
from lake.filesystems import files_of
from lake.formats.hive.commits import place_in
from lake.formats.hive.evidence import Seen
from lake.formats.hive.slices import File, list_places
from lake.locations import file_at, uri_of
from lake.model import words_of
from lake.ports import Rewrite


class Publication:
    """The partitions of one rewrite's version, which nobody reads yet; ``seen`` is how they were prepared."""

    def __init__(self, rewrite: Rewrite, seen: Mapping[str, Seen]) -> None:
        self._rewrite, self._ref = rewrite, rewrite.prepared.plan.table
        self._files = files_of(self._ref.location)
        #: by partition: what has to be there, paths with bytes
        self._expected: dict[str, dict[str, int]] = {name: {} for name in seen}
        #: the partitions as they were when everything in them had come along
        self.seen = dict(seen)
        #: those that have to stay out of the commit, each with the reason
        self.left_out: dict[str, str] = {}

    def fill(self) -> None:
        """Bring what was written, and what is not rewritten, into the version's partitions."""
        prepared = self._rewrite.prepared
        rewritten = {
            file_at(self._ref.location, str(item.path))
            for index in prepared.groups
            for item in prepared.plan.groups[index].slices
        }
        for name, seen in self.seen.items():
            self._bring_along(name, seen, seen.files.keys() - rewritten)
        for output in self._rewrite.outputs:
            source = file_at(self._ref.location, output.path)
            target = f"{self._place(output.partition)}/{basename(source)}"
            try:
                self._files.take_after(source, next(iter(self.seen[output.partition].files)))
                self._files.sync(source)
                self._files.rename(source, target)
            except FileNotFoundError as error:
                raise Conflict(f"what was written of {prepared.instant} was taken back") from error
            self._expected[output.partition][target] = output.bytes

    def follows(self, now: Mapping[str, Seen]) -> bool:
        """Leave out what has changed, and bring along what was only added to; whether there was nothing to bring.

        Raises Conflict where no partition is left.
        """
        is_still = True
        for name, before in list(self.seen.items()):
            difference = before.difference(now.get(name))
            if difference is not None:
                self.left_out[name] = f"{words_of(name)} changed before the commit: {difference}"
                self._files.remove_tree(self._place(name))
                del self.seen[name], self._expected[name]
            elif now[name].files.keys() != before.files.keys():
                self._bring_along(name, now[name], now[name].files.keys() - before.files.keys())
                self.seen[name] = now[name]
                is_still = False
        if not self.seen:
            raise Conflict(next(iter(self.left_out.values())))
        return is_still

    def files(self) -> Mapping[str, Sequence[File]]:
        """What is in each of the partitions. Raises Integrity where that is not exactly what has to be there."""
        places = [seen.place.moved(uri_of(self._place(name))) for name, seen in self.seen.items()]
        found = {listing.place.name: listing.files for listing in list_places(self._ref.name, places)}
        for name, files in found.items():
            if {file.path: file.bytes for file in files} != self._expected[name]:
                raise Integrity(f"{self._place(name)} does not hold exactly what was written for it")
            self._files.sync(self._place(name))
        return found

    def _place(self, name: str) -> str:
        return file_at(self._ref.location, place_in(self._rewrite.prepared.instant, name))

    def _bring_along(self, name: str, seen: Seen, paths: Iterable[str]) -> None:
        """Files that are not rewritten, under a second name."""
        for path in paths:
            target = f"{self._place(name)}/{basename(path)}"
            try:
                self._files.second_name(path, target)
            except FileNotFoundError as error:
                raise Conflict(f"{path} or the version is gone") from error
            except FileExistsError as error:
                raise Conflict(f"{target} is there already") from error
            self._expected[name][target] = seen.files[path][0]
