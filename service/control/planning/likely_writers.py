# SPDX-License-Identifier: Apache-2.0
"""What is said of the tools that likely write or read a table: its evidence, what a move does, and the setting."""

from typing import Any

from lake.capabilities import LikelyWriter
from service.control.config.tables import ConfiguredTable


def writer_document(writer: LikelyWriter, table: ConfiguredTable) -> dict[str, Any]:
    """A tool for scripts. ``warns`` says that it may not see where a move has put files; ``text`` is all in words."""
    return {
        "tool": writer.tool,
        "warns": writer.consequence is not None,
        "evidence": list(writer.evidence),
        "consequence": writer.consequence,
        "remedy": writer.remedy or None,
        "access": table.access,
        "text": _writer_text(writer, table),
    }


def writer_warning(writer: LikelyWriter) -> str:
    """What is to be known of a tool before ``access`` is set; '' of one that asks the catalog."""
    if writer.consequence is None:
        return ""
    return f"{_evidence_text(writer)}. {writer.consequence} {writer.remedy}"


def writer_label(writer: LikelyWriter) -> str:
    """A tool, and the evidence where no warning has it."""
    return f"{writer.tool} ({', '.join(writer.evidence)})" if writer.consequence is None else writer.tool


def _writer_text(writer: LikelyWriter, table: ConfiguredTable) -> str:
    if said := writer_warning(writer):
        return f"Warning: {said} {_access_setting_text(table)}"
    return f"{_evidence_text(writer)}. It asks the catalog where files are, unless a job is given a path."


def _evidence_text(writer: LikelyWriter) -> str:
    return f"{writer.tool} seems to write or read the table ({'; '.join(writer.evidence)})"


def _access_setting_text(table: ConfiguredTable) -> str:
    if table.access is None:
        return "Setting: access, which is not set."
    where = table.origins["access"].source
    return f'Setting: access = "{table.access}", from {where}' + (
        ", which says that this does not happen." if table.access == "catalog" else "."
    )
