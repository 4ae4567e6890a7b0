# SPDX-License-Identifier: Apache-2.0
"""What tests of the store share: an empty database, once on SQLite and once on PostgreSQL."""

from collections.abc import Iterator

import pytest

from service.control.store import Store


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store on ``database_url``."""
    opened = Store(database_url)
    yield opened
    opened.close()
