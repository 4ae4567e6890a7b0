# SPDX-License-Identifier: Apache-2.0
"""The tables that reliability tests copy before they change them."""

import pytest
from hudi_tables import STATISTICS, small_files


@pytest.fixture(scope="session")
def template(spark, tmp_path_factory):
    """600 rows with ids 0 to 599 in six small files of a copy-on-write table."""
    base = tmp_path_factory.mktemp("reliability") / "template"
    small_files(spark, base)
    return base


@pytest.fixture(scope="session")
def template_with_statistics(spark, tmp_path_factory):
    """The same with a metadata table and statistics in it, as most tables have: what a kill in a commit may tear."""
    base = tmp_path_factory.mktemp("statistics") / "template"
    small_files(spark, base, options=STATISTICS)
    return base
