# SPDX-License-Identifier: Apache-2.0
"""The page of a report: tables and savings by owner, tag or database."""

from collections.abc import Mapping

from service.control import serializers
from service.control.store import TableFilter
from service.server.api.context import Context
from service.server.web.formatting import shell_command
from service.server.web.rendering import PageContent, query_path


def report_page(context: Context, by: str, table_filter: TableFilter, query: Mapping[str, str]) -> PageContent:
    """Return the report ``by`` one of ``serializers.GROUPINGS``, over the tables that match ``table_filter``."""
    figures = context.lake_cache.get().figures
    found = serializers.report(by, context.store.table_totals(**table_filter), figures)
    kept = {**query, "sort": ""}
    return PageContent(
        by=by,
        filtered=any(kept.values()),
        groupings=tuple((word, query_path("/report", kept, by=word)) for word in serializers.GROUPINGS),
        lines=tuple(
            (entry, query_path("/", kept, **{by: entry["group"]}) if entry["group"] is not None else "")
            for entry in found
        ),
        command=shell_command("lakefold", "report", "--by", by),
    )
