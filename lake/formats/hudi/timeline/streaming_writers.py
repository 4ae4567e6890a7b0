# SPDX-License-Identifier: Apache-2.0
"""Writers that are between their commit to the metadata table and their own.

A streaming write (``hoodie.metadata.streaming.write.enabled``, the default since Hudi 1.2) writes its part of the
metadata table along with its data files, outside the table's lock. Whoever opens the metadata table for writing
meanwhile rolls that part back as a failed write, and the writer's commit fails. So nothing of ours that writes to the
metadata table begins while such a writer lives.
"""

from collections.abc import Callable

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.timeline import Timeline


def find_streaming_writer(storage: TableStorage, timeline: Timeline, is_dead: Callable[[str], bool]) -> str | None:
    """The inflight instant of ``timeline`` that has a pending part in the metadata table and a living writer.

    ``is_dead`` says of an instant whether its writer's heartbeat has expired.
    """
    if not metadata_table.metadata_table_exists(storage):
        return None
    parts = {instant.time for instant in Timeline(storage.subdirectory(metadata_table.DIRECTORY)).pending}
    return next((i.time for i in timeline.pending if i.time in parts and not is_dead(i.time)), None)
