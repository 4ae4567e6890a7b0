# SPDX-License-Identifier: Apache-2.0
"""A look at some partitions of a Hudi table: what it finds is what a whole listing finds in them, and what it lists.

Without a JVM, on tables made by hand; real ones are in test_hudi_observe_snapshot.py.
"""

from collections.abc import Collection
from pathlib import Path

import pytest
from hudi_by_hand import PROPERTIES, T1, T2, T3, T4, ByHand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.slices import _partition_filters

HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
#: what a file group may be made of: base files of T1 and T2, logs on either, logs without a base, and lost writes
PIECES = ("base T1", "base T2", "log T1", "log T2", "lost base", "lost log")
GROUPS = st.dictionaries(
    st.tuples(st.sampled_from(("a", "a,b", "b", "b/c", " c", "p 1%2F", ".d")), st.sampled_from(("f-0", "f-1"))),
    st.sets(st.sampled_from(PIECES), min_size=1),
    max_size=6,
)


def many_partitions(base: Path, count: int = 200) -> ByHand:
    """A table with a base file, a log and a group of logs only in each of ``count`` partitions."""
    table = ByHand(base, PROPERTIES | HIVE)
    for number in range(count):
        group = f"dt={number:03}/f-{number}"
        table.base_file(T1, group)
        table.log_file(T1, 1, group)
        table.log_file(T1, 1, f"{group}-logs")
    table.complete(T1, "deltacommit")
    return table


def test_a_listing_of_named_partitions_lists_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many_partitions(tmp_path / "t")
    wanted = {"dt=007", "dt=042", "dt=nowhere"}
    whole = [row for row in table.slices() if row["partition"] in wanted]
    assert len(whole) == 4
    listed: list[str] = []
    children = TableStorage.children
    monkeypatch.setattr(TableStorage, "children", lambda self, path: (listed.append(path), children(self, path))[1])
    monkeypatch.setattr(TableStorage, "_files_below", None)
    assert table.slices(wanted) == whole
    assert {path for path in listed if not path.startswith(".hoodie")} == wanted


@pytest.mark.parametrize(
    "path", [".hoodie", ".hoodie/metadata/files", "..", "../t/dt=001", "dt=001/", "/dt=001", "a//b"]
)
def test_a_directory_that_is_no_partition_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    table = many_partitions(tmp_path / "t", 2)
    metadata = table.base / ".hoodie/metadata/files"
    metadata.mkdir(parents=True)
    (metadata / f".files-0000-0_{T1}.log.1_0-1-1").write_bytes(b"#HUDI#")
    listed: list[str] = []
    children = TableStorage.children
    monkeypatch.setattr(TableStorage, "children", lambda self, where: (listed.append(where), children(self, where))[1])
    assert table.slices([path]) == []
    assert set(listed) <= {".hoodie", ".hoodie/.aux"}, "the timeline, and the checkpoints of Flink"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, hive=st.booleans(), data=st.data())
@pytest.mark.slow
def test_a_listing_of_some_partitions_equals_a_whole_listing_of_them(
    tmp_path_factory: pytest.TempPathFactory, groups: dict[tuple[str, str], set[str]], hive: bool, data: st.DataObject
) -> None:
    table = ByHand(tmp_path_factory.mktemp("look") / "t", PROPERTIES | (HIVE if hive else {}))
    table.complete(T1, "deltacommit")
    table.complete(T2, "deltacommit")
    where = {partition: f"dt={partition}" if hive else partition for partition, _ in groups}
    for (partition, file_id), pieces in sorted(groups.items()):
        group = f"{where[partition]}/{file_id}"
        for piece in pieces:
            kind, time = piece.split(" ") if not piece.startswith("lost") else (piece.split(" ")[1], "lost")
            instant = {"T1": T1, "T2": T2, "lost": T4}[time]
            if kind == "base":
                table.base_file(instant, group)
            else:
                table.log_file(instant, 1, group)
    compacted = data.draw(st.none() | st.sampled_from(sorted(where.values())) if where else st.none())
    if compacted is not None:
        table.request_compaction(T3, f"f-0_0-1-1_{T1}.parquet", [], f"{compacted}/f-0")
        table.log_file(T3, 1, f"{compacted}/f-0")
    whole = table.slices()
    named: Collection[str] = data.draw(st.sets(st.sampled_from([*sorted(where.values()), "nowhere"])))
    assert table.slices(named) == [row for row in whole if row["partition"] in named]


@pytest.mark.parametrize(
    ("properties", "partitions", "filters"),
    [
        ({}, ["a", "b"], [("dt", "IN", "a,b")]),
        (HIVE, ["dt=a", "dt=b=c"], [("dt", "IN", "a,b=c")]),
        ({}, ["a,b\\"], [("dt", "IN", r"a\,b\\")]),
        ({"hoodie.table.partition.fields": "x,y"}, ["1/2", "1/3"], [("x", "IN", "1"), ("y", "IN", "2,3")]),
        ({"hoodie.table.partition.fields": "x,y"}, ["1/ 2"], [("x", "IN", "1")]),
        ({"hoodie.datasource.write.partitionpath.urlencode": "true"}, ["a%3Ab"], [("dt", "IN", "a:b")]),
        ({"hoodie.datasource.write.partitionpath.urlencode": "true"}, ["a%2Fb"], []),
        ({}, ["2026/01/01"], []),
        ({"hoodie.table.keygenerator.type": "TIMESTAMP"}, ["2026-01-01"], []),
        ({"hoodie.table.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator"}, ["2026-01-01"], []),
        ({}, [str(number) for number in range(101)], []),
        ({"hoodie.table.partition.fields": ""}, [""], []),
    ],
)
def test_hudi_rs_gets_partition_filters_only_where_they_leave_out_no_wanted_partition(
    properties: dict[str, str], partitions: list[str], filters: list[tuple[str, str, str]]
) -> None:
    assert _partition_filters(PROPERTIES | properties, partitions) == filters
