# SPDX-License-Identifier: Apache-2.0
"""The table that reliability tests copy before they change it."""

import pytest
from hudi_tables import STATISTICS, small_files


@pytest.fixture(scope="session")
def template(spark, tmp_path_factory):
    """600 rows with ids 0 to 599 in six small files of a copy-on-write table with statistics, as most have."""
    base = tmp_path_factory.mktemp("reliability") / "template"
    small_files(spark, base, options=STATISTICS)
    return base
