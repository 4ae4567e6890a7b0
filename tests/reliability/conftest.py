# SPDX-License-Identifier: Apache-2.0
"""The tables that reliability tests copy before they change them."""

import pytest
from hudi_tables import STATISTICS, small_files
from kept_tables import kept, small_table


@pytest.fixture(scope="session")
def template(spark):
    """600 rows with ids 0 to 599 in six small files of a copy-on-write table."""
    return small_table(spark)


@pytest.fixture(scope="session")
def template_with_statistics(spark):
    """The same with a metadata table and statistics in it, as most tables have: what a kill in a commit may tear."""
    return kept("small-statistics", "trips", lambda base: small_files(spark, base, options=STATISTICS), __file__)
