# SPDX-License-Identifier: Apache-2.0
"""The test formats with executors, take-over, sweep and cleaner, on SQLite and PostgreSQL."""

from contract.run import RunContract


class TestRun(RunContract):
    """Every obligation of each test format."""
