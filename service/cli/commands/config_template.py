# SPDX-License-Identifier: Apache-2.0
"""The first ``lakefold.toml`` of a lake, which ``lakefold init`` writes after it has read the tables."""

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from service.text import format_size, plural

if TYPE_CHECKING:
    from service.control.planning.table_assessment import TableAssessment

#: example rules in the file; more would make the file hard to read
_MAX_RULES = 5
_WIDTH = 118
_S3 = """\
[spark]  # access of lakefold and Spark to the object store: docs/object-stores.md
# "spark.hadoop.fs.s3a.endpoint.region" = "eu-central-1"
# "spark.hadoop.fs.s3a.endpoint" = "http://minio.internal:9000"  # for a store other than Amazon S3
# "spark.hadoop.fs.s3a.path.style.access" = "true"
"""
_MODES = """\
# Every table starts in mode "observe": scanned and explained, never changed. To have a table compacted, uncomment its
# rule and declare how the table's writers work. lakefold can't find this out, because no table records it:
#   concurrency = "single_writer"  no writer runs while lakefold works on the table
#   concurrency = "occ"            writers continue, and take the same lock as lakefold; copy the writers' lock settings
#                                  to [tables.write_options] below the rule: hoodie.write.lock.provider = "…"
# The requirements for writers: docs/writers.md. After a change: lakefold config check.

"""
_METASTORE_MODES = """\
# Every table starts in mode "observe": scanned and explained, never changed. To have a table compacted, uncomment its
# rule and declare which programs get the partitions' locations from the metastore. lakefold can't find this out,
# because no table records it:
#   access = "catalog"  all readers and writers; none of them uses a partition's path
# An INSERT OVERWRITE … SELECT from the same partition may lose rows that another job appended seconds earlier: leave
# access unset if such statements run beside appends.
# The meaning of this setting, and further conditions: docs/hive.md. After a change: lakefold config check.

"""
_CATALOG_MODES = """\
# Every table starts in mode "observe": scanned and explained, never changed. To have a table compacted, uncomment its
# rule. Writers may continue: Iceberg's commits exclude each other. What is served: docs/iceberg.md. After a change:
# lakefold config check.

"""


def render_config(
    source: Mapping[str, str],
    assessments: "Sequence[TableAssessment]",
    unread_count: int,
    spark: Mapping[str, str],
) -> Iterator[str]:
    """Yield the lines of the file: the source, the main settings with their defaults, and rules for a few tables.

    ``spark`` are the settings of the source's catalog.

    The rules are comments. An uncommented rule is valid only after the user has declared how the table is written or
    read.
    """
    from lake.storage.locations import is_s3

    yield f"# Written by lakefold init on {datetime.now(UTC):%Y-%m-%d}. Every setting: docs/configuration.md."
    yield ""
    if is_s3(source.get("path", "")):
        yield from _S3.splitlines()
    if spark:
        yield "[spark]  # the catalog, as Spark's own configuration defines it"
        yield from (f"{_toml_string(name)} = {_toml_string(value)}" for name, value in sorted(spark.items()))
        yield ""
    yield "[[sources]]"
    count = plural(len(assessments) + unread_count, "table")
    (where, *patterns) = (f"{setting} = {_toml_string(value)}" for setting, value in source.items())
    yield f"{where}  # {count}; tables added later are found too"
    yield from patterns
    yield ""
    yield from _defaults()
    modes = _METASTORE_MODES if "metastore" in source else _CATALOG_MODES if "catalog" in source else _MODES
    yield from modes.splitlines()
    served = [assessment for assessment in sort_by_reducible(assessments) if assessment.error is None]
    for assessment in served[:_MAX_RULES]:
        yield from _rule(assessment)
    if left := len(served) - _MAX_RULES + unread_count if len(served) > _MAX_RULES else unread_count:
        more = f"{plural(left, 'table')} more"
        yield f'# {more}: lakefold tables list. The match of a rule may be a pattern, such as "sales.*".'
    for assessment in assessments:
        if assessment.error is not None:
            yield from _comment(f"Can't be used: {assessment.error_text}")


def _defaults() -> Iterator[str]:
    from lake.units import format_bytes, format_duration
    from planner.policy.policy import SizingPolicy

    policy = SizingPolicy()
    yield "[defaults]  # for all tables; these are the defaults"
    for key, value, meaning in (
        (
            "small_file_limit",
            _compact_value(format_bytes(policy.small_file_limit_bytes)),
            "a base file below this is small",
        ),
        (
            "target_file_max",
            _compact_value(format_bytes(policy.target_file_max_bytes)),
            "no new file is planned larger",
        ),
        (
            "quiet_period",
            _compact_value(format_duration(policy.quiet_period)),
            "files modified more recently are left alone",
        ),
        ("retention", _compact_value(format_duration(policy.retention)), "superseded files are kept this long"),
    ):
        setting = f'# {key} = "{value}"'
        yield f"{setting.ljust(29)}  # {meaning}"
    yield ""


def _compact_value(text: str) -> str:
    return text.replace(".0 ", " ").replace(" ", "")


def _rule(assessment: "TableAssessment") -> Iterator[str]:
    from service.control.planning.likely_writers import writer_warning
    from service.control.planning.refusals import required_rule_setting

    layout = assessment.layout
    if layout is not None:
        facts = f"{plural(layout.files, 'file')}, {format_size(layout.bytes)}, {layout.small_files:,} small"
        yield from _comment(f"{assessment.table.name}: {facts}; to plan: {describe_planned_work(assessment)}")
    if assessment.writers:
        yield from _comment(f"observed writers: {assessment.writers}")
    yield "# [[tables]]"
    yield f"# match = {_toml_string(glob.escape(assessment.table.name))}"
    yield '# mode = "compact"'
    for warning in filter(None, map(writer_warning, assessment.likely_writers)):
        # Still comments when the rule is uncommented line by line.
        yield from (f"# {line}" for line in _comment(f"Warning: {warning}"))
    if (wanted := required_rule_setting(assessment.table)) is not None:
        setting, values = wanted
        yield f'# {setting} = "?"  # {" or ".join(map(_toml_string, values))}'
    yield ""


def _comment(text: str) -> Iterator[str]:
    """Wrap a text into comment lines; unprintable characters become spaces."""
    line = "#"
    for word in "".join(char if char.isprintable() else " " for char in text).split():
        if len(line) + 1 + len(word) > _WIDTH and line != "#":
            yield line
            line = "#  "
        line += f" {word}"
    yield line


def _toml_string(text: str) -> str:
    # TOML's basic strings accept JSON's escapes except surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def describe_planned_work(assessment: "TableAssessment") -> str:
    """Describe the work that mode compact would plan now."""
    layout = assessment.layout
    if layout is None:
        return "can't be used, see below"
    if layout.reducible_bytes:
        work = f"{plural(layout.reducible_files or 0, 'file')}, {format_size(layout.reducible_bytes)} to rewrite"
        return work if assessment.is_plannable else f"{work}, not yet: {assessment.main_skip_reason}"
    return f"nothing ({assessment.main_skip_reason})" if assessment.main_skip_reason else "nothing"


def sort_by_reducible(assessments: "Sequence[TableAssessment]") -> "list[TableAssessment]":
    """Sort tables by their reducible bytes, largest first."""
    return sorted(
        assessments, key=lambda assessment: -((assessment.layout.reducible_bytes if assessment.layout else None) or 0)
    )
