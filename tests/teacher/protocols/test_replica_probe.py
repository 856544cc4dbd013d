"""Two real services behind one client: the same weights pass for one teacher, other weights are found at the handshake.

Both load one folder, whose weights change in between: the name, the tokenizer and every other fact stay the same.
"""

from contextlib import AsyncExitStack, ExitStack, closing

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.requests_for import request_for
from support.served import served_over_grpc
from support.tiny_models import TINY_TEACHER, save_tiny_model
from tokbridge.client import TeacherClient
from tokbridge.errors import TeacherMismatchError
from tokbridge_teacher.building import build_service
from tokbridge_teacher.settings import ServeSettings


def disturb_weights(folder, share: float) -> None:
    """Change every weight of a saved model by a random share of itself."""
    path = folder / "model.safetensors"
    torch.manual_seed(0)
    weights = {name: tensor * (1 + share * torch.randn_like(tensor)) for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """Services of one folder, by how far its weights were off when they loaded it."""
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("replicas"))
    with ExitStack() as stack:
        built = {}
        for name, share in (("as_saved", 0.0), ("again", 0.0), ("slightly_off", 1e-5), ("off", 0.05)):
            disturb_weights(folder, share)
            built[name] = build_service(ServeSettings(model=str(folder), max_model_len=600))
            stack.enter_context(closing(built[name]))
            stack.callback(built[name].stop, 5)
        yield built


async def connect(stack, student, *services, **options):
    targets = [await stack.enter_async_context(served_over_grpc(built.service)) for built in services]
    client = await stack.enter_async_context(TeacherClient(targets, **options))
    await client.connect(student)
    return client


@pytest.mark.parametrize("other", ["again", "slightly_off"])
async def test_the_same_weights_on_the_same_dtype_are_replicas(replicas, other, student_registration):
    async with AsyncExitStack() as stack:
        client = await connect(stack, student_registration, replicas["as_saved"], replicas[other])
        assert client.statistics.probes == 2


async def test_equal_weights_pass_even_a_bound_of_zero_and_a_slight_difference_does_not(replicas, student_registration):
    async with AsyncExitStack() as stack:
        await connect(stack, student_registration, replicas["as_saved"], replicas["again"], max_divergence=0.0)
    async with AsyncExitStack() as stack:
        with pytest.raises(TeacherMismatchError, match="not replicas"):
            await connect(
                stack, student_registration, replicas["as_saved"], replicas["slightly_off"], max_divergence=1e-12
            )


async def test_other_weights_are_refused_and_both_addresses_named(replicas, student_registration):
    async with AsyncExitStack() as stack:
        with pytest.raises(TeacherMismatchError, match="not replicas of one teacher") as raised:
            await connect(stack, student_registration, replicas["as_saved"], replicas["off"])
    details = raised.value.details
    assert details["replica"] != details["reference"]
    assert details["divergence"] > 0.01
    assert details["largest_log_prob_difference"] > 0


async def test_rows_of_a_failed_replica_are_those_of_the_other(replicas, student_registration, student_profile):
    """Identical bits for identical batches: one request at a time, first on one replica and then on the other."""
    requests = [request_for(student_profile, f"the number {number}, and so on") for number in range(3)]
    async with AsyncExitStack() as stack:
        client = await connect(stack, student_registration, replicas["as_saved"])
        undisturbed = [(await client.score(request)).rows for request in requests]
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        target = await first.enter_async_context(served_over_grpc(replicas["as_saved"].service))
        other = await stack.enter_async_context(served_over_grpc(replicas["again"].service))
        client = await stack.enter_async_context(TeacherClient([target, other]))
        await client.connect(student_registration)
        await first.aclose()
        for request, expected in zip(requests, undisturbed, strict=True):
            rows = (await client.score(request)).rows
            for name, array in vars(expected).items():
                np.testing.assert_array_equal(getattr(rows, name), array)
