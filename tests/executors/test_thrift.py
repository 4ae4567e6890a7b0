# SPDX-License-Identifier: Apache-2.0
"""Thrift's compact protocol without a schema: every byte comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.datafiles.thrift import BINARY, BYTE, DOUBLE, FALSE, I32, I64, LIST, STRUCT, TRUE, decode, encode

_VALUES = {
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: st.integers(-(2**63), 2**63 - 1),
    BYTE: st.integers(0, 255),
    DOUBLE: st.floats(allow_nan=False),
    BINARY: st.binary(max_size=200),
    TRUE: st.none(),
    FALSE: st.none(),
}
_PLAIN = st.sampled_from(sorted(_VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), _VALUES[kind]))
_STRUCTS = st.recursive(
    st.dictionaries(st.integers(1, 40), _PLAIN, max_size=5),
    lambda inner: st.dictionaries(
        st.integers(1, 2000),
        _PLAIN
        | inner.map(lambda value: (STRUCT, value))
        | st.lists(inner, max_size=20).map(lambda values: (LIST, (STRUCT, values)))
        | st.lists(_VALUES[I64], max_size=20).map(lambda values: (LIST, (I64, values))),
        max_size=4,
    ),
    max_leaves=8,
)


@given(_STRUCTS)
@pytest.mark.slow
def test_any_struct_is_decoded_to_itself_and_a_part_of_one_is_refused_or_another(value):
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data
    with pytest.raises(ValueError, match="cut short"):
        decode(data[:-1])
