import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge.json_text import MAX_DEPTH, compact_json, load_json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_json_within_the_bounds_is_read_as_it_was_written(value):
    assert load_json(compact_json(value)) == value == load_json(json.dumps(value))


@pytest.mark.parametrize("leaf", ["", "1"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(opening, closing, leaf):
    def nested(depth):
        return opening * depth + (leaf or "[]") + closing * depth

    taken = MAX_DEPTH - (not leaf)
    assert load_json(nested(taken)) == json.loads(nested(taken))
    for depth in (taken + 1, 900, 100_000):
        with pytest.raises(ValueError, match="deeper"):
            load_json(nested(depth))
    with pytest.raises(ValueError, match="deeper"):
        compact_json(json.loads(nested(taken + 1)))


@pytest.mark.parametrize("text", [r'"\ud800"', r'["x\udfff"]', r'{"\ud800": 1}', r'"\udc00\ud800"'])
def test_lone_surrogates_are_refused(text):
    with pytest.raises(ValueError, match="surrogate"):
        load_json(text)
    with pytest.raises(ValueError, match="surrogate"):
        compact_json(json.loads(text))


def test_a_surrogate_pair_is_one_character():
    assert load_json(r'"\ud83d\ude00"') == "\U0001f600"
