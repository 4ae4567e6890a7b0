# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI schemas of documents with renamed fields; each former name is marked as deprecated."""

from collections.abc import Mapping
from typing import Any

from service.former_names import FORMER_FIELDS

#: the document of each item of a list, or of an answer, by method and path
_ANSWERS: Mapping[tuple[str, str], str] = {
    ("get", "/v1/plans"): "plan[]",
    ("get", "/v1/plans/{plan_id}"): "plan",
    ("get", "/v1/status"): "status",
    ("get", "/v1/audit"): "audit entry[]",
    ("get", "/v1/tables/{table}/explain"): "decision[]",
    ("get", "/v1/tables/{table}/replay"): "replay",
    ("get", "/v1/tables/{table}/advice"): "advice",
    ("post", "/v1/simulate"): "simulation",
    **{("post", f"/v1/plans/{action}"): "bulk action" for action in ("cancel", "retry", "approve", "decline")},
}


def add_former_fields(document: dict[str, Any]) -> None:
    """Add the schemas to an OpenAPI document, and refer to them in the answers of its routes."""
    schemas = document["components"]["schemas"]
    for (method, path), answer in _ANSWERS.items():
        root = answer.removesuffix("[]")
        name = "".join(word.capitalize() for word in root.split())
        schemas[name] = _schema(root)
        found: dict[str, Any] = {"$ref": f"#/components/schemas/{name}"}
        if answer.endswith("[]"):
            found = {"type": "object", "properties": {"items": {"type": "array", "items": found}}}
        content = document["paths"][path][method]["responses"]["200"].setdefault("content", {})
        known = content.setdefault("application/json", {}).get("schema") or {}
        content["application/json"]["schema"] = {"allOf": [known, found]} if known else found


def _schema(path: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for former, present in FORMER_FIELDS.get(path, {}).items():
        properties[present] = {"description": f"Called `{former}` in earlier releases."}
        properties[former] = {"deprecated": True, "description": f"Use `{present}`."}
    for child in sorted({one[len(path) + 1 :].split(".")[0] for one in FORMER_FIELDS if one.startswith(f"{path}.")}):
        inner = _schema(f"{path}.{child}")
        if child.endswith("[]"):
            inner = {"type": "array", "items": inner}
        elif child.endswith("{}"):
            inner = {"type": "object", "additionalProperties": inner}
        properties.setdefault(child.rstrip("[]{}"), {}).update(inner)
    return {"type": "object", "properties": properties}
