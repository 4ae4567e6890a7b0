# SPDX-License-Identifier: Apache-2.0
"""The pending instants of a timeline: their owners, the processes that execute them, and their late files."""
