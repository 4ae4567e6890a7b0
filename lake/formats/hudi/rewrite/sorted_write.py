# SPDX-License-Identifier: Apache-2.0
"""Hudi's write of a plan with sort columns, built after the plan's begin and without the table's lock.

To build this write, Spark reads all inputs: it samples them for the ranges of the sort, and with adaptive execution it
also shuffles them. With the lock held, writers would wait for the lock during this time.
"""

from typing import TYPE_CHECKING, Any

from lake.formats.hudi.plans.schema_changes import refuse_stale_schema

if TYPE_CHECKING:
    from lake.formats.hudi.client.client import HudiClient


def sort_inputs(client: "HudiClient", instant: str) -> Any:
    """Return Hudi's write of the begun plan ``instant`` as a job that has not run yet; reads and sorts all inputs.

    Raises Transient if the table's columns have changed since the client was opened.
    """
    hudi = client.jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    # Hudi reads the inputs with the columns that the timeline of ``table`` states. A column that is missing there, and
    # is restored before the commit, would be null in the new files.
    refuse_stale_schema(client, str(client.bundle.table_schema(table.getMetaClient(), meta_columns=False).toString()))
    strategy = hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy(
        table, client.context, client.write_config
    )
    requested = client.bundle.requested_clustering(client.meta, instant)
    plan = hudi.common.util.ClusteringUtils.getClusteringPlan(client.meta, requested).get().getRight()
    statuses = strategy.performClustering(plan, client.schema, instant).getWriteStatuses()
    return hudi.data.HoodieJavaRDD.getJavaRDD(table.getIndex().updateLocation(statuses, client.context, table, instant))
