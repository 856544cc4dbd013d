from hypothesis import given
from hypothesis import strategies as st

from tokbridge_teacher.model_health import ModelHealth, ModelState

COMPUTES, FAILS, LOST = ModelState


def test_so_many_failed_passes_in_a_row_are_a_model_that_fails():
    seen: list[ModelState] = []
    health = ModelHealth(3, seen.append)
    for failed in (True, True, False, True, True):
        health.pass_ended(failed=failed)
        assert health.state is COMPUTES
    health.pass_ended(failed=True)
    assert health.state is FAILS
    health.pass_ended(failed=True)
    health.pass_ended(failed=False)
    assert health.state is COMPUTES
    assert seen == [FAILS, COMPUTES]


def test_what_is_lost_stays_lost():
    seen: list[ModelState] = []
    health = ModelHealth(1, seen.append)
    health.pass_ended(failed=True)
    health.lost()
    health.lost()
    health.pass_ended(failed=False)
    assert health.state is LOST
    assert seen == [FAILS, LOST]


@given(st.lists(st.booleans()), st.integers(1, 4))
def test_the_state_is_that_of_the_last_passes(passes, limit):
    health = ModelHealth(limit)
    for failed in passes:
        health.pass_ended(failed=failed)
    assert (health.state is FAILS) == (len(passes) >= limit and all(passes[-limit:]))
