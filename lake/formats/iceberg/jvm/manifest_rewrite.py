# SPDX-License-Identifier: Apache-2.0
"""Rewrites manifests by Iceberg's own ``RewriteManifests``, which keeps the entries of the files as they are."""

import json
from collections.abc import Mapping
from typing import Any

from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read.manifests import ManifestRewrite


def new_update(table: JavaTable, rewrite: ManifestRewrite) -> Any:
    """Return Iceberg's update that makes ``rewrite``, for ``commit_snapshot``.

    If another commit replaces some of the manifests first, the update rewrites the others.
    """
    with translated_errors(table.name, "preparing the rewrite of manifests"):
        update = table.table.rewriteManifests()
        output_of = _java_map(table, rewrite.output_of)
        update.clusterBy(_look_up(table, "Function", output_of, "get", "org.apache.iceberg.ContentFile", "location"))
        selected = _java_map(table, dict.fromkeys(rewrite.manifests, True))
        update.rewriteIf(
            _look_up(table, "Predicate", selected, "containsKey", "org.apache.iceberg.ManifestFile", "path")
        )
    return update


def _java_map(table: JavaTable, values: Mapping[str, int]) -> Any:
    """Return a Java map with these values, sent in one call."""
    kind = table.jvm.java.lang.Class.forName("java.util.HashMap")
    return table.iceberg.util.JsonUtil.mapper().readValue(json.dumps(dict(values)), kind)


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
