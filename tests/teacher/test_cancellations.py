"""Why a request was cut short, told from what is known when it happens."""

import pytest

from tokbridge.errors import DeadlineExceededError, OverloadedError, ShuttingDownError
from tokbridge_teacher.cancellations import CancelReason, SlowReaderError, reason_of_departure, reason_of_error


@pytest.mark.parametrize(
    ("deadline_s", "now_s", "stopping", "reason"),
    [
        (None, 5.0, False, CancelReason.CLIENT_GONE),
        (None, 5.0, True, CancelReason.SHUTDOWN),
        (10.0, 5.0, False, CancelReason.CLIENT_GONE),
        (10.0, 5.0, True, CancelReason.SHUTDOWN),
        (10.0, 10.0, False, CancelReason.DEADLINE),
        (10.0, 10.5, True, CancelReason.DEADLINE),
        # The caller's clock runs out a little before the deadline that it announced, rounded up.
        (10.0, 9.95, False, CancelReason.DEADLINE),
        (100.0, 98.5, False, CancelReason.DEADLINE),
        (100.0, 97.0, False, CancelReason.CLIENT_GONE),
    ],
)
def test_a_departure_is_told_from_a_deadline(deadline_s, now_s, stopping, reason):
    known = reason_of_departure(received_s=0.0, now_s=now_s, deadline_s=deadline_s, stopping=stopping)
    assert known is reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadlineExceededError("x"), CancelReason.DEADLINE),
        (SlowReaderError("x"), CancelReason.SLOW_READER),
        (ShuttingDownError("x"), CancelReason.SHUTDOWN),
        (OverloadedError("x"), None),
    ],
)
def test_errors_that_cut_short_are_told_from_others(error, reason):
    assert reason_of_error(error) is reason
