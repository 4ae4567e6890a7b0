# SPDX-License-Identifier: Apache-2.0
"""Hudi's own rollback of the begun work of a pending clustering or compaction."""

from typing import Any

from lake.formats.hudi.client.client import HudiClient
from lake.plan import PlanKind


def roll_back_rewrite(client: HudiClient, time: str, kind: PlanKind) -> None:
    """Roll an inflight rewrite back to requested by Hudi's own rollback; continues an interrupted rollback."""
    service = client.write_client.getTableServiceClient()
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    known = _constant_function(client, service.getPendingRollbackInfo(client.meta, time, False))
    if kind is PlanKind.CLUSTERING:
        inflight, method = client.bundle.inflight_clustering(client.meta, time), "rollbackInflightClustering"
    else:
        inflight = client.meta.getInstantGenerator().getCompactionInflightInstant(time)
        method = "rollbackInflightCompaction"
    client.bundle.roll_back_rewrite(service, getattr(table, method), inflight, known)
    client.meta.reloadActiveTimeline()


def _constant_function(client: HudiClient, value: Any) -> Any:
    """Return a ``java.util.function.Function`` that returns ``value``: Hudi gets an instant's rollback from it."""
    invoke, java_class = client.jvm.java.lang.invoke, client.jvm.java.lang.Class
    arguments = client.jvm.java.util.ArrayList()
    arguments.add(java_class.forName("java.lang.Object"))
    answer = invoke.MethodHandles.dropArguments(invoke.MethodHandles.constant(value.getClass(), value), 0, arguments)
    return invoke.MethodHandleProxies.asInterfaceInstance(java_class.forName("java.util.function.Function"), answer)
