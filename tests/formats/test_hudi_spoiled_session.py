# SPDX-License-Identifier: Apache-2.0
"""A JVM in which Hudi makes no record of a metadata table any more: recognised by the exception that it raises."""

from typing import Any

import pytest
from hudi_writing import NewTable
from pyspark.errors.exceptions.captured import ArrayIndexOutOfBoundsException

from lake.errors import CommitUnknown, SessionSpoiled, Transient
from lake.formats.hudi.jvm.errors import is_session_spoiled, translate_error

SILENT = """org.apache.hudi.exception.HoodieException: failed
\tat org.apache.hudi.metadata.HoodieBackedTableMetadataWriter.commit(HoodieBackedTableMetadataWriter.java:1)
Caused by: java.lang.ArrayIndexOutOfBoundsException
"""


@pytest.mark.spark
def test_the_error_of_a_metadata_record_with_another_schema_object_spoils_the_session(
    table: NewTable, spark: Any
) -> None:
    trips, jvm = table(), spark._jvm
    partitions = jvm.java.util.ArrayList()
    partitions.add("dt=1")
    record = jvm.org.apache.hudi.metadata.HoodieMetadataPayload.createPartitionListRecord(partitions)
    # Hudi's own schema has more fields; what counts is that it is another object, so that offsets are used.
    schema = '{"type": "record", "name": "r", "fields": [{"name": "key", "type": "string"}]}'
    other = getattr(jvm.org.apache.avro, "Schema$Parser")().parse(schema)
    with pytest.raises(Exception, match="Index 5 out of bounds") as caught:
        record.getData().getInsertValue(other, jvm.java.util.Properties())
    outcome = translate_error(caught.value, trips.ref, "committing")
    assert isinstance(outcome, SessionSpoiled)
    assert str(outcome) == (
        "trips: Hudi can no longer make records of the metadata table in this JVM while committing "
        "(ArrayIndexOutOfBoundsException: Index 5 out of bounds for length 1, in "
        "HoodieMetadataPayload.getInsertValue); Spark's session is restarted"
    )
    assert isinstance(translate_error(caught.value, trips.ref, "committing", committing=True), CommitUnknown)


@pytest.mark.spark
def test_another_index_out_of_bounds_spoils_nothing(table: NewTable, spark: Any) -> None:
    with pytest.raises(ArrayIndexOutOfBoundsException) as caught:
        spark._jvm.java.lang.reflect.Array.getInt(spark.sparkContext._gateway.new_array(spark._jvm.int, 1), 9)
    outcome = translate_error(caught.value, table().ref, "rewriting")
    assert type(outcome) is Transient


def test_an_exception_without_message_and_frames_is_recognized_by_the_chained_exceptions() -> None:
    assert is_session_spoiled(SILENT)
    assert not is_session_spoiled(SILENT.replace("apache.hudi.metadata", "apache.hudi.io"))
    assert not is_session_spoiled(SILENT + "\tat org.apache.parquet.Reader.read(Reader.java:1)\n")
