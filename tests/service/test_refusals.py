# SPDX-License-Identifier: Apache-2.0
"""What has to be said of a table before it is planned, by what its format can do."""

import pytest
from daemon_toys import known
from toys.timeline import ToyFormat
from toys.versions import VersionsFormat

from lake.model import TableRef
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.refusals import missing_required_rules, required_rule_setting
from service.control.serializers import table_settings

pytestmark = pytest.mark.usefixtures("clean_environment")

TABLE = TableRef(name="t", format="toy", location="/lake/t")
COMPACT = '[[tables]]\nmatch = "*"\nmode = "compact"\n'


def unsaid(tmp_path, format_, text=COMPACT):
    """What is missing in the rules ``text`` for a table of ``format_``; what is asked for; the setting as shown."""
    (tmp_path / "lakefold.toml").write_text(text)
    with known(format_):
        config = load_config()
        table = configure_table(config, TABLE)
        shown = {row["setting"]: row["value"] for row in table_settings(table)}
        return missing_required_rules(config, table), required_rule_setting(table), shown["concurrency"]


def test_a_format_with_exclusive_commits_needs_no_concurrency_setting(tmp_path):
    why, asked, shown = unsaid(tmp_path, ToyFormat())
    assert 'concurrency = "single_writer"' in why
    assert asked == ("concurrency", ("single_writer", "occ"))
    assert "not stated" in shown
    for said in ("", 'concurrency = "occ"\n'):
        assert unsaid(tmp_path, VersionsFormat(), COMPACT + said) == (
            None,
            None,
            "not needed: toy tables keep writers apart",
        )
