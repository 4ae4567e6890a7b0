# SPDX-License-Identifier: Apache-2.0
"""Rewrites manifests by Iceberg's own ``RewriteManifests``, which keeps the entries of the files as they are."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from lake.errors import Conflict, Integrity
from lake.formats.iceberg.catalog.tables import LoadedTable, table_identity
from lake.formats.iceberg.jvm.commit_checks import require_exclusion, require_lineage, require_row_ids
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.exact_commit import BaseMetadata, NewSnapshot, commit_snapshot
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read import lineage, manifests, refusals
from lake.formats.iceberg.read.commits import SERVICE
from lake.formats.iceberg.read.live_files import snapshot_of
from lake.formats.iceberg.read.storage_clock import require_storage_clock

MANIFESTS = "manifests"
"""The table service that rewrites many small manifests as few large ones."""

_COUNTS = ("created", "replaced", "kept")
"""The summary keys of a rewrite of manifests, without their common beginning ``manifests-``."""


def rewrite_manifests(
    table: LoadedTable,
    settings: Mapping[str, str],
    open_table: Callable[[], JavaTable],
    fence: Callable[[], None],
) -> Sequence[str]:
    """Rewrite the small manifests of the newest snapshot of ``main``. Returns what was done, one text if anything.

    ``settings`` are Spark's. Raises Conflict if the table is created again meanwhile, its rows get row ids, or commits
    may replace each other now, Integrity if the new manifests would list a file differently, and the errors of
    ``select_manifests`` and ``commit_snapshot``.
    """
    name, snapshot = table.ref.name, snapshot_of(table)
    rewrite = manifests.select_manifests(table, snapshot)
    if snapshot is None or rewrite is None:
        return []
    require_storage_clock(table, "rewriting manifests")
    lacks_ids = refusals.has_lineage(table) and getattr(snapshot, "first_row_id", None) is None
    has_no_ids_since = snapshot.snapshot_id if lacks_ids else None
    comparison, confirmed, counts = manifests.ManifestComparison(table), set[Hashable](), dict[str, int]()

    class _NoLongerWanted(Exception):
        pass

    def check(base: BaseMetadata, new: NewSnapshot) -> None:
        if base.identity != table_identity(table) or base.manifest_list is None:
            raise Conflict(f"{name}: the table was created again while its manifests were rewritten")
        require_exclusion(table.ref, settings, base)
        require_lineage(name, base, table.metadata.format_version, has_no_ids_since, "manifests were selected")
        if new.parent_id != base.current_snapshot_id:
            return  # it is made again, and would differ from the newer state
        counts.update({one: int(new.summary[f"manifests-{one}"]) for one in _COUNTS})
        if counts["created"] >= counts["replaced"]:
            raise _NoLongerWanted  # another commit has rewritten them
        if manifests.has_successor(base.current_snapshot_id, base.parents, base.branches):
            raise _NoLongerWanted
        if different := comparison.differing_files(base.manifest_list, new.manifest_list):
            raise Integrity(
                f"{name}: the new manifests would list {len(different)} files differently, such as {different[0]}"
            )
        if base.format_version >= lineage.MIN_VERSION:
            require_row_ids(table, base, new, "the rewrite of manifests", confirmed)

    java_table = open_table()
    update = new_update(java_table, rewrite).set(SERVICE, MANIFESTS)
    try:
        commit_snapshot(java_table, update, check, fence)
    except _NoLongerWanted:
        return []
    created, replaced, kept = (counts[one] for one in _COUNTS)
    return [f"rewrote {replaced} manifests as {created}: readers find {created + kept} instead of {replaced + kept}"]


def new_update(table: JavaTable, rewrite: manifests.ManifestRewrite) -> Any:
    """Return Iceberg's update that makes ``rewrite``, for ``commit_snapshot``.

    If another commit replaces some of the manifests first, the update rewrites the others.
    """
    with translated_errors(table.name, "preparing the rewrite of manifests"):
        update = table.table.rewriteManifests()
        output_of = table.to_map(rewrite.output_of)
        update.clusterBy(_look_up(table, "Function", output_of, "get", "org.apache.iceberg.ContentFile", "location"))
        selected = table.to_map(dict.fromkeys(rewrite.manifests, True))
        update.rewriteIf(
            _look_up(table, "Predicate", selected, "containsKey", "org.apache.iceberg.ManifestFile", "path")
        )
    return update


def _look_up(table: JavaTable, interface: str, values: Any, method: str, owner: str, key: str) -> Any:
    """Return a Java ``interface`` that calls ``method`` of the map ``values`` with the ``key`` of an ``owner``.

    It is made of method handles: Java could call a Python function only through a server in this process.
    """
    java = table.jvm.java
    handles, types = java.lang.invoke.MethodHandles, java.lang.invoke.MethodType
    any_object, text = java.lang.Class.forName("java.lang.Object"), java.lang.Class.forName("java.lang.String")
    result = java.lang.Boolean.TYPE if interface == "Predicate" else any_object
    lookup = handles.publicLookup()
    of_map = lookup.findVirtual(java.lang.Class.forName("java.util.Map"), method, types.methodType(result, any_object))
    owner_class = table.table.getClass().getClassLoader().loadClass(owner)
    of_owner = lookup.findVirtual(owner_class, key, types.methodType(text))
    of_owner = of_owner.asType(types.methodType(any_object, owner_class))
    found = handles.collectArguments(of_map.bindTo(values), 0, of_owner)
    as_interface = java.lang.invoke.MethodHandleProxies.asInterfaceInstance
    return as_interface(java.lang.Class.forName(f"java.util.function.{interface}"), found)
