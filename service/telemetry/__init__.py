# SPDX-License-Identifier: Apache-2.0
"""Plans as others' tools see them, off by default: OpenLineage events and OpenTelemetry spans."""
