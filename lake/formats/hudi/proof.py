# SPDX-License-Identifier: Apache-2.0
"""The hash receipt as one of Hudi's pre-commit validators: one SQL query that must answer the same before and after.

The query counts rows and sums a hash of every value, so it does not depend on the order of rows. Hudi runs it over
all base files of the plan's partitions, as they are and as they would be.
"""

import json
from typing import Any

from lake.errors import Rejected

VALIDATORS = "hoodie.precommit.validators"
QUERIES = "hoodie.precommit.validators.equality.sql.queries"
VALIDATOR = "org.apache.hudi.client.validator.SqlQueryEqualityPreCommitValidator"
#: the file name is what a rewrite changes
_META_COLUMNS = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path")


def _quoted(name: str) -> str:
    if ";" in name or "<TABLE_NAME>" in name:
        raise Rejected(f"receipt = hash can't name column {name!r} in Hudi's validator; set receipt = footer")
    return "`" + name.replace("`", "``") + "`"


def _value(expression: str, data_type: Any, depth: int = 0) -> str:
    """An SQL expression that two different values never share and that ``xxhash64`` accepts.

    A hash skips nulls and accepts no maps; so every null is spelled out as a flag, and a map becomes its entries.
    """
    kind = data_type if isinstance(data_type, str) else data_type["type"]
    if kind == "struct":
        fields = [_value(f"{expression}.{_quoted(f['name'])}", f["type"], depth) for f in data_type["fields"]]
        return f"struct(isnull({expression}) as n, {', '.join(f'{v} as f{i}' for i, v in enumerate(fields))})"
    item = f"e{depth}"
    if kind == "array":
        inner = _value(item, data_type["elementType"], depth + 1)
        values = f"transform({expression}, {item} -> {inner})"
        return f"struct(isnull({expression}) as n, size({expression}) as s, {values} as v)"
    if kind == "map":
        key = _value(f"{item}.key", data_type["keyType"], depth + 1)
        value = _value(f"{item}.value", data_type["valueType"], depth + 1)
        entries = f"transform(map_entries({expression}), {item} -> struct({key} as k, {value} as v))"
        return f"struct(isnull({expression}) as n, size({expression}) as s, {entries} as v)"
    return f"struct(isnull({expression}) as n, {expression} as v)"


def equality_query(schema_json: str, *, meta_columns: bool) -> str:
    """The query for a Spark schema (its JSON); ``<TABLE_NAME>`` stands for the rows before or after."""
    fields = [(name, "string") for name in _META_COLUMNS] if meta_columns else []
    fields += [(field["name"], field["type"]) for field in json.loads(schema_json)["fields"]]
    values = ", ".join(_value(_quoted(name), data_type) for name, data_type in fields)
    return f"select count(*) as c, sum(cast(xxhash64({values}) as decimal(38,0))) as h from <TABLE_NAME>"
