# SPDX-License-Identifier: Apache-2.0
"""Tables that a Flink job upserts, whose index is in its state: compacted, never clustered."""

from pathlib import Path

import pytest
from hudi_writing import FORMAT, NewTable

from lake.errors import Rejected

pytestmark = pytest.mark.spark
#: what Flink's sink leaves in a table; a job with a client id adds it to the name
CHECKPOINTS = ".hoodie/.aux/ckp_meta"
REASON = (
    r"\.hoodie/\.aux/ckp_meta shows that Flink upserts the table: .*; leave the table out, or, .* hoodie\.index\.type"
)


def test_a_copy_on_write_table_that_flink_upserts_is_refused_unless_its_index_is_named(table: NewTable) -> None:
    trips = table()
    (Path(trips.base) / CHECKPOINTS).mkdir(parents=True)
    FORMAT.check(trips.ref)  # bulk inserts need no index
    trips.upsert(0, 60, 1, "id % 9 = 0")
    with pytest.raises(Rejected, match=REASON):
        FORMAT.check(trips.ref)
    trips.options["hoodie.index.type"] = "BLOOM"
    FORMAT.check(trips.ref)


def test_a_merge_on_read_table_that_flink_upserts_is_compacted_and_not_clustered(table: NewTable) -> None:
    trips = table("mor")
    (Path(trips.base) / f"{CHECKPOINTS}_7").mkdir(parents=True)
    trips.upsert(0, 60, 3, "id % 9 = 0")
    FORMAT.check(trips.ref)
    before, instants = trips.rows(), trips.timeline().instants
    with pytest.raises(Rejected, match=REASON.replace("ckp_meta", "ckp_meta_7")):
        trips.run(trips.plan())
    assert trips.timeline().instants == instants
    trips.proved(trips.compaction())
    assert trips.rows() == before
    with pytest.raises(Rejected, match="Flink upserts the table"):
        trips.run(trips.plan("0198-after-the-compaction"))
