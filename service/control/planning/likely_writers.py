# SPDX-License-Identifier: Apache-2.0
"""Texts about the tools that likely write or read a table: evidence, effect of a relocation, and the setting."""

from typing import Any

from lake.capabilities import LikelyWriter
from service.control.config.table_settings import ConfiguredTable
from service.former_names import both_names


def writer_document(writer: LikelyWriter, table: ConfiguredTable) -> dict[str, Any]:
    """Return a tool as JSON.

    ``has_warning`` is True if the tool may not see files after a relocation; ``text`` is a sentence with all of this.
    """
    document = {
        "tool": writer.tool,
        "has_warning": writer.consequence is not None,
        "evidence": list(writer.evidence),
        "consequence": writer.consequence,
        "remedy": writer.remedy or None,
        "access": table.access,
        "text": _writer_text(writer, table),
    }
    return both_names("likely writer", document)


def writer_warning(writer: LikelyWriter) -> str:
    """Return the warning about a tool before ``access`` is set; '' for a tool that uses the catalog."""
    if writer.consequence is None:
        return ""
    return f"{_evidence_text(writer)}. {writer.consequence} {writer.remedy}"


def writer_label(writer: LikelyWriter) -> str:
    """Return the tool's name, with the evidence unless a warning has it."""
    return f"{writer.tool} ({', '.join(writer.evidence)})" if writer.consequence is None else writer.tool


def _writer_text(writer: LikelyWriter, table: ConfiguredTable) -> str:
    if warning := writer_warning(writer):
        return f"Warning: {warning} {_access_setting_text(table)}"
    return f"{_evidence_text(writer)}. It gets file locations from the catalog, unless a job is given a path."


def _evidence_text(writer: LikelyWriter) -> str:
    return f"{writer.tool} seems to write or read the table ({'; '.join(writer.evidence)})"


def _access_setting_text(table: ConfiguredTable) -> str:
    if table.access is None:
        return "Setting: access, which is not set."
    where = table.origins["access"].source
    return f'Setting: access = "{table.access}", from {where}' + (
        ", which contradicts this evidence." if table.access == "catalog" else "."
    )
