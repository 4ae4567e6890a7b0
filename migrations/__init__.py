# SPDX-License-Identifier: Apache-2.0
"""Alembic migrations of the lakefold database; part of the wheel."""
