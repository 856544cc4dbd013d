"""What a fault of a pass is called, and that it does not hold the pass's tensors."""

import gc
import logging
import weakref

import pytest
import torch

from support.teacher_jobs import Outcome, job
from tokbridge.errors import ErrorCode
from tokbridge_teacher.backends import device_faults
from tokbridge_teacher.backends.base import BackendLostError, DeviceMemoryError
from tokbridge_teacher.backends.device_faults import computes, fault_of_device
from tokbridge_teacher.backends.hidden_states import HiddenStates
from tokbridge_teacher.building import load_backend
from tokbridge_teacher.settings import ServeSettings

CPU = torch.device("cpu")
ASSERT = RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def broken_device(monkeypatch):
    """A device on which every call fails, as after an assert."""

    def fail(*_, **__):
        raise RuntimeError("CUDA error: an earlier call failed")

    monkeypatch.setattr(device_faults.torch, "ones", fail)


def test_a_device_that_adds_is_not_lost_whatever_the_error_says():
    assert computes(CPU)
    assert fault_of_device(ASSERT, CPU) is None


@pytest.mark.usefixtures("broken_device")
def test_a_device_that_does_not_add_is_lost():
    fault = fault_of_device(RuntimeError("anything"), CPU)
    assert isinstance(fault, BackendLostError)
    assert (fault.code, fault.retryable) == (ErrorCode.INTERNAL, False)
    assert "anything" not in fault.message


def test_a_device_without_memory_is_not_lost(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device_faults.torch, "ones", full)
    assert computes(CPU)
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    assert isinstance(fault_of_device(torch.OutOfMemoryError("CUDA out of memory"), CPU), DeviceMemoryError)
    assert emptied


@pytest.mark.parametrize(
    ("error", "expected"), [(ASSERT, BackendLostError), (torch.OutOfMemoryError("full"), DeviceMemoryError)]
)
def test_a_pass_ends_by_the_typed_fault_and_lets_its_tensors_go(
    error, expected, teacher_folder, monkeypatch, request, caplog
):
    caplog.set_level(logging.CRITICAL + 1, "tokbridge_teacher")  # pytest would keep the traceback
    backend = load_backend(ServeSettings(model=str(teacher_folder)))
    request.getfixturevalue("broken_device")
    held: list[weakref.ref] = []

    def fail(*_):
        hidden = torch.zeros(4)
        held.append(weakref.ref(hidden))
        raise type(error)(str(error))
        yield hidden

    monkeypatch.setattr(HiddenStates, "run", fail)
    steps = backend.steps([job(10, Outcome())])
    with pytest.raises(expected) as raised:
        next(steps)
    fault = raised.value
    del raised, steps
    gc.collect()
    assert fault.__context__ is None
    assert [reference() for reference in held] == [None]
