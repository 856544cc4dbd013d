"""Every transition of the retry state machine, without sleeping."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge.client.retry import RetryPolicy, RetryState, retry_after_s
from tokbridge.errors import (
    CorruptStreamError,
    DeadlineExceededError,
    InvalidConfigError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    TeacherMismatchError,
    TeacherUnavailableError,
    UnknownStudentError,
)

STEADY = RetryPolicy(initial_backoff_s=1.0, multiplier=2.0, max_backoff_s=8.0, jitter=0.0)


def state(policy=STEADY, deadline_s=1000.0) -> RetryState:
    return RetryState(policy, deadline_s=deadline_s, random=Random(0))


def fail(retry_state, error, now_s=0.0):
    retry_state.begin()
    return retry_state.on_failure(error, now_s)


def test_backoff_grows_to_its_cap():
    retry_state = state()
    assert [fail(retry_state, TeacherUnavailableError("gone")) for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert retry_state.attempts == 6
    assert retry_state.retries == {"teacher_unavailable": 6}


@given(st.integers(1, 10_000), st.floats(0, 1), st.integers(0, 2**32))
def test_jitter_only_shortens_and_by_no_more_than_its_share(failures, jitter, seed):
    policy = RetryPolicy(jitter=jitter)
    retry_state = RetryState(policy, deadline_s=float("inf"), random=Random(seed))
    for failure in range(1, min(failures, 20) + 1):
        longest = policy.backoff_s(failure)
        assert (1 - jitter) * longest <= fail(retry_state, ShuttingDownError("bye")) <= longest
    assert policy.backoff_s(failures) <= policy.max_backoff_s


@pytest.mark.parametrize(
    "error", [InvalidRequestError("no"), TeacherMismatchError("other"), DeadlineExceededError("late")]
)
def test_what_trying_again_cannot_mend_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        fail(state(), error)
    assert raised.value is error


def test_the_wait_of_the_next_replica_is_kept_if_it_is_longer_than_the_backoff():
    retry_state = state()
    retry_state.begin()
    assert retry_state.on_failure(OverloadedError("full"), 0.0, wait_s=30) == 30
    retry_state.begin()
    assert retry_state.on_failure(OverloadedError("full"), 0.0, wait_s=0.5) == 2


def test_a_replica_on_which_the_call_has_not_failed_is_asked_at_once_and_the_backoff_does_not_grow():
    retry_state = state()
    retry_state.begin()
    assert retry_state.on_failure(TeacherUnavailableError("gone"), 0.0, elsewhere=True) == 0
    assert retry_state.on_failure(TeacherUnavailableError("gone"), 0.0, wait_s=0.5, elsewhere=True) == 0.5
    assert fail(retry_state, TeacherUnavailableError("gone")) == 1
    assert retry_state.retries == {"teacher_unavailable": 3}


def test_the_wait_that_a_service_asks_for():
    assert retry_after_s(OverloadedError("full", retry_after_s=30)) == 30
    assert retry_after_s(OverloadedError("full", retry_after_s="soon")) == 0
    assert retry_after_s(OverloadedError("full")) == 0


def test_a_negative_wait_forbids_trying_again():
    with pytest.raises(OverloadedError):
        fail(state(), OverloadedError("full", retry_after_s=-1))


def test_no_wait_reaches_past_the_deadline():
    retry_state = state(deadline_s=10.0)
    assert fail(retry_state, TeacherUnavailableError("gone"), now_s=8.9) == 1
    cause = TeacherUnavailableError("gone")
    with pytest.raises(DeadlineExceededError, match="after 2 attempts") as raised:
        fail(retry_state, cause, now_s=9.0)
    assert raised.value.__cause__ is cause
    assert raised.value.details == {"attempts": 2, "last_error": "teacher_unavailable"}
    assert retry_state.retries.total() == 1


def test_remaining_time_never_falls_below_zero():
    assert state(deadline_s=10.0).remaining_s(4.0) == 6
    assert state(deadline_s=10.0).remaining_s(11.0) == 0


def test_a_forgotten_student_is_retried_at_once_then_with_backoff_then_given_up():
    retry_state = state(RetryPolicy(initial_backoff_s=1.0, max_backoff_s=8.0, jitter=0.0, max_repeats=3))
    assert [fail(retry_state, UnknownStudentError("who")) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UnknownStudentError):
        fail(retry_state, UnknownStudentError("who"))


def test_a_stream_that_stays_corrupt_is_given_up():
    retry_state = state(RetryPolicy(max_repeats=1))
    fail(retry_state, CorruptStreamError("crc"))
    with pytest.raises(CorruptStreamError):
        fail(retry_state, CorruptStreamError("crc"))


def test_the_number_of_attempts_can_be_limited():
    retry_state = state(RetryPolicy(max_attempts=2))
    fail(retry_state, TeacherUnavailableError("gone"))
    with pytest.raises(TeacherUnavailableError):
        fail(retry_state, TeacherUnavailableError("gone"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_backoff_s": 0},
        {"multiplier": 0.5},
        {"max_backoff_s": 0.1},
        {"jitter": 1.5},
        {"max_attempts": 0},
        {"max_repeats": -1},
    ],
)
def test_a_policy_out_of_range_is_refused(wrong):
    with pytest.raises(InvalidConfigError, match=next(iter(wrong))):
        RetryPolicy(**wrong)
