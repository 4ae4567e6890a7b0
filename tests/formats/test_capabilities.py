# SPDX-License-Identifier: Apache-2.0
"""What a format declares is what its objects have, and what it does not have is refused by name."""

import pytest
from contract.capabilities import check_capabilities

from lake import capabilities as optional
from lake.errors import Rejected
from lake.formats import FORMATS, load_format
from lake.formats_doc import PAGE, render
from lake.model import TableRef
from lake.ports import Capability


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_its_declared_capabilities(name):
    adapter = load_format(name)
    check_capabilities(adapter, adapter.writer(TableRef(name="t", format=name, location="/nowhere"), lambda: None))


def test_a_capability_with_methods_is_stated_by_the_writers_protocol_alone():
    writer = type(load_format("hudi").writer(TableRef(name="t", format="hudi", location="/nowhere"), lambda: None))
    with pytest.raises(ValueError, match="roll_back: the writer's protocol says so"):
        optional.capabilities_of(writer, Capability.ROLL_BACK)


def test_a_capability_that_a_format_lacks_is_refused_by_name():
    class Plain:
        name = "plain"
        capabilities = frozenset({Capability.SORTING})

    table = TableRef(name="demo.trips", format="plain", location="/lake/trips")
    optional.require_capability(Plain(), table, Capability.SORTING)
    with pytest.raises(Rejected, match=r"demo\.trips: plain tables have no roll back, lakefold can't do that here"):
        optional.require_capability(Plain(), table, Capability.ROLL_BACK)
    assert (optional.pending_instants(Plain(), table), optional.pending_actions(Plain(), table)) == ({}, ())


def test_the_page_shows_the_capabilities_of_each_shipped_format():
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run: make formats-doc"
    with pytest.raises(ValueError, match="no place"):
        render(page.replace("<!-- generated: capabilities -->", ""))
