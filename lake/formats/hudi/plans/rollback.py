# SPDX-License-Identifier: Apache-2.0
"""Hudi's own rollback of what was begun of a pending clustering or compaction."""

from typing import Any

from lake.formats.hudi.client.client import HudiClient
from lake.plan import PlanKind


def roll_back_rewrite(client: HudiClient, time: str, kind: PlanKind) -> None:
    """Hudi's own rollback of an inflight rewrite to requested; continues one that was cut short."""
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
    """A ``java.util.function.Function`` that answers ``value``: Hudi asks it for the rollback of an instant."""
    invoke, java_class = client.jvm.java.lang.invoke, client.jvm.java.lang.Class
    arguments = client.jvm.java.util.ArrayList()
    arguments.add(java_class.forName("java.lang.Object"))
    answer = invoke.MethodHandles.dropArguments(invoke.MethodHandles.constant(value.getClass(), value), 0, arguments)
    return invoke.MethodHandleProxies.asInterfaceInstance(java_class.forName("java.util.function.Function"), answer)
