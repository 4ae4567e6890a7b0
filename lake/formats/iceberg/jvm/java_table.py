# SPDX-License-Identifier: Apache-2.0
"""A table in Iceberg's Java API, opened through the catalog of the Spark session."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from lake.errors import Rejected
from lake.formats.iceberg.catalog.settings import PREFIX
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.footers import ids_without_bounds, leaf_ids, may_be_cut, split_offsets
from lake.formats.iceberg.read.live_files import DataFile
from lake.model import TableRef

_TYPES_OF_CUT_BOUNDS = frozenset({"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"})


class JavaTable:
    """One table, loaded anew by ``spark``. ``table`` is Iceberg's ``Table``, ``operations`` its ``TableOperations``."""

    def __init__(self, spark: Any, ref: TableRef) -> None:
        if ref.catalog is None:
            raise Rejected(f"{ref.name}: Iceberg tables are served through their catalog; use [[sources]] with catalog")
        self.name, self.spark, self.jvm = ref.name, spark, spark._jvm
        self.iceberg = self.jvm.org.apache.iceberg
        _prevent_open_query(spark, ref.catalog.name)
        with translated_errors(ref.name, "opening the table"):
            catalog = self.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, ref.catalog.name)
            identifier = self.iceberg.catalog.TableIdentifier.parse(ref.catalog.table)
            # Spark may have cached a table that was dropped and created again since.
            catalog.invalidateTable(identifier)
            self.table = catalog.loadTable(identifier)
            self.operations = self.table.operations()
            # A plan may have thousands of files, and each of these costs several calls to the JVM.
            self._modes = self.iceberg.MetricsConfig.forTable(self.table)
            self._io, self._sort_orders = self.table.io(), self.table.sortOrders()
            self._parser, self._mapper = self.iceberg.ContentFileParser, self.iceberg.util.JsonUtil.mapper()
            self._parquet, self._data_files = self.iceberg.parquet.ParquetUtil, self.iceberg.DataFiles
            list_class, long_class = map(self.jvm.java.lang.Class.forName, ("java.util.ArrayList", "java.lang.Long"))
            types = self._mapper.getTypeFactory()
            self._list_of_longs = types.constructCollectionType(list_class, long_class)
        self._specs: dict[int, Any] = {}
        self._is_full: dict[int, bool] = {}

    def spec(self, spec_id: int) -> Any:
        """Return a partition spec of the table."""
        if spec_id not in self._specs:
            self._specs[spec_id] = self.table.specs().get(spec_id)
        return self._specs[spec_id]

    def partition(self, spec_id: int, partition_json: str) -> Any:
        """Return the values of a partition, from Iceberg's JSON by field id, as a Java ``StructLike``."""
        return self.iceberg.SingleValueParser.fromJson(self.spec(spec_id).partitionType(), partition_json)

    def new_location(self, like: DataFile, name: str) -> str:
        """Return the location of a new file called ``name`` in the partition of ``like``, by the table's settings."""
        locations = self.table.locationProvider()
        if self.spec(like.spec_id).isUnpartitioned():
            return str(locations.newDataLocation(name))
        partition = self.partition(like.spec_id, like.partition_json)
        return str(locations.newDataLocation(self.spec(like.spec_id), partition, name))

    def existing_file(self, file: DataFile) -> Any:
        """Return a file of the table as a Java ``DataFile``, for its removal."""
        # Iceberg's builder leaves out the null values of partition fields that were removed from a spec, and then the
        # commit does not find the file in its manifest.
        document = {
            "spec-id": file.spec_id,
            "content": "DATA",
            "file-path": file.location,
            "file-format": file.file_format,
            "partition": json.loads(file.partition_json),
            "file-size-in-bytes": file.bytes,
            "record-count": file.rows,
        }
        return self._from_document(document)

    def existing_delete_file(self, file: DeleteFile) -> Any:
        """Return a Java ``DeleteFile`` for a delete file or a deletion vector, to remove it."""
        is_equality = file.content is DeleteContent.EQUALITY
        document = {
            "spec-id": file.spec_id,
            "content": "EQUALITY_DELETES" if is_equality else "POSITION_DELETES",
            "file-path": file.location,
            "file-format": file.file_format,
            "partition": json.loads(file.partition_json),
            "file-size-in-bytes": file.bytes,
            "record-count": file.rows,
        }
        if is_equality:
            document["equality-ids"] = list(file.equality_ids)
        if file.content is DeleteContent.VECTOR:
            document["referenced-data-file"] = file.data_location
            document["content-offset"] = file.content_offset
            document["content-size-in-bytes"] = file.content_bytes
        return self._from_document(document)

    def _from_document(self, document: Mapping[str, Any]) -> Any:
        """Return the Java ``ContentFile`` of a document in Iceberg's JSON."""
        return self._parser.fromJson(self._mapper.readTree(json.dumps(document)), self.spec(document["spec-id"]))

    def to_map(self, values: Mapping[str, int]) -> Any:
        """Return a Java map with these values, sent in one call."""
        return self._mapper.readValue(json.dumps(dict(values)), self.jvm.java.lang.Class.forName("java.util.HashMap"))

    def new_collector(self) -> tuple[Any, Any]:
        """Return an empty Java list of texts, and a Java ``Consumer`` that appends to it."""
        java = self.jvm.java
        names, any_object = java.util.ArrayList(), java.lang.Class.forName("java.lang.Object")
        types = java.lang.invoke.MethodType
        append = java.lang.invoke.MethodHandles.publicLookup().findVirtual(
            java.lang.Class.forName("java.util.List"), "add", types.methodType(java.lang.Boolean.TYPE, any_object)
        )
        append = append.bindTo(names).asType(types.methodType(java.lang.Void.TYPE, any_object))
        # Java could call a Python function only through a server in this process.
        as_interface = java.lang.invoke.MethodHandleProxies.asInterfaceInstance
        return names, as_interface(java.lang.Class.forName("java.util.function.Consumer"), append)

    def texts(self, values: Any) -> list[str]:
        """Return the texts of a Java list, fetched in one call."""
        found: list[str] = json.loads(self._mapper.writeValueAsString(values))
        return found

    def delete_files(self, locations: Sequence[str]) -> None:
        """Delete files by Iceberg's access to storage. Files that can't be deleted stay."""
        names = self._mapper.readValue(
            json.dumps(list(locations)), self.jvm.java.lang.Class.forName("java.util.ArrayList")
        )
        self.iceberg.CatalogUtil.deleteFiles(self._io, names, "expired", True)

    def new_file(self, location: str, size: int, footer: pq.FileMetaData, like: DataFile, sort_order: int) -> Any:
        """Return a Java ``DataFile`` for a new Parquet file with this ``footer`` in the partition of ``like``.

        ``sort_order`` is the id of the order of its rows. Its metrics are those that Iceberg's writer takes from the
        footer, by the metrics modes of the table's properties, without bounds of the columns in ``ids_without_bounds``
        and ``_ids_with_cut_bounds``.
        """
        metrics = self._parquet.fileMetrics(self._io.newInputFile(location), self._modes)
        ids = leaf_ids(footer)
        without = ids_without_bounds(footer, ids)
        if without is not None:
            without = {*without, *self._ids_with_cut_bounds(footer, ids)}
        if without is None or without:
            for bounds in (metrics.lowerBounds(), metrics.upperBounds()):
                if bounds is not None:
                    for field_id in list(bounds) if without is None else without:
                        bounds.remove(field_id)
        builder = self._builder(like).withPath(location).withFileSizeInBytes(size).withMetrics(metrics)
        builder = builder.withSortOrder(self._sort_orders.get(sort_order))
        # py4j would make Java integers of small numbers.
        offsets = self._mapper.readValue(json.dumps(split_offsets(footer)), self._list_of_longs)
        return builder.withSplitOffsets(offsets).build()

    def _ids_with_cut_bounds(self, footer: pq.FileMetaData, ids: Sequence[int | None]) -> set[int]:
        """Return the field ids of columns in the metrics mode ``full`` that have bounds which may be no values.

        ``ids`` are those of ``leaf_ids``.

        Some writers cut the bounds of long values, and engines that copy row groups keep these bounds. Spark takes
        ``min`` and ``max`` from bounds if the mode is ``full``. In the other modes it does so only for values that no
        writer cuts.
        """
        full = {
            position: field_id
            for position, field_id in enumerate(ids)
            if field_id is not None
            and footer.schema.column(position).physical_type in _TYPES_OF_CUT_BOUNDS
            and self._has_full_bounds(field_id)
        }
        if not full:
            return set()
        found, stored = set(), io.BytesIO()
        footer.write_metadata_file(stored)
        # pyarrow does not show whether bounds are exact.
        raw = self.jvm.java.io.ByteArrayInputStream(stored.getvalue()[4:-8])
        groups = self.iceberg.shaded.org.apache.parquet.format.Util.readFileMetaData(raw).getRow_groups()
        for number in range(footer.num_row_groups):
            columns = groups.get(number).getColumns()
            for position, field_id in full.items():
                chunk = footer.row_group(number).column(position)
                if field_id in found or chunk.statistics is None or not chunk.statistics.has_min_max:
                    continue
                statistics = columns.get(position).getMeta_data().getStatistics()
                if statistics.isSetIs_max_value_exact() and statistics.isSetIs_min_value_exact():
                    is_cut = not (statistics.isIs_max_value_exact() and statistics.isIs_min_value_exact())
                else:
                    is_cut = may_be_cut(chunk)
                if is_cut:
                    found.add(field_id)
        return found

    def _has_full_bounds(self, field_id: int) -> bool:
        """Return True if the metrics mode of a column is ``full``."""
        if field_id not in self._is_full:
            name = self.table.schema().findColumnName(field_id)
            self._is_full[field_id] = name is not None and str(self._modes.columnMode(name)) == "full"
        return self._is_full[field_id]

    def _builder(self, like: DataFile) -> Any:
        builder = self._data_files.builder(self.spec(like.spec_id)).withFormat("PARQUET")
        if self.spec(like.spec_id).isUnpartitioned():
            return builder
        return builder.withPartition(self.partition(like.spec_id, like.partition_json))


def _prevent_open_query(spark: Any, catalog: str) -> None:
    """Keep a JDBC catalog from querying for its own tables, which exist: Iceberg (1.10.2) does not close that query.

    On SQLite the open query locks the database, and no other process can commit while this one lives.
    """
    key = f"{PREFIX}{catalog}"
    if (spark.conf.get(f"{key}.uri", "") or "").startswith("jdbc:"):
        spark.conf.set(f"{key}.jdbc.init-catalog-tables", "false")
