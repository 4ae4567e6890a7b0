# SPDX-License-Identifier: Apache-2.0
"""The formats of the tests under executors, rescuer, sweep and cleaner, on SQLite and PostgreSQL."""

from contract.run import RunContract


class TestRun(RunContract):
    """Every promise, of each of them."""
