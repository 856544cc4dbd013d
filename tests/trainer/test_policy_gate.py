"""The gate in front of sampling: open at a version, closed while weights change and after a change that broke off."""

import pytest

from tokbridge.errors import IncompleteWeightsError
from tokbridge_trainer.rollout.policy_gate import PolicyGate


def test_closed_before_the_first_weights():
    with pytest.raises(IncompleteWeightsError, match="first weights"):
        _ = PolicyGate().version


def test_closed_while_weights_are_being_replaced_and_open_at_the_new_version_after():
    gate = PolicyGate()
    with gate.replacing(3), pytest.raises(IncompleteWeightsError):
        _ = gate.version
    assert gate.version == 3


def test_closed_after_a_replacement_that_broke_off_until_a_whole_one():
    gate = PolicyGate()
    with gate.replacing(3):
        pass
    with pytest.raises(ZeroDivisionError), gate.replacing(4):
        _ = 1 / 0
    with pytest.raises(IncompleteWeightsError) as refused:
        _ = gate.version
    assert refused.value.details["version"] == 4
    with gate.replacing(5):
        pass
    assert gate.version == 5
