"""The whole path through a real socket against the model's own distributions."""

import threading

import grpc
import numpy as np
import pytest
import torch

from support.requests_for import request_for
from support.served import served_over_grpc
from tokbridge.client import TeacherClient
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.targets import RowCase
from tokbridge.v1 import teacher_pb2_grpc
from tokbridge_teacher.backends import huggingface
from tokbridge_teacher.backends.model_loading import load_model
from tokbridge_teacher.prompt.rendering import render_prompt
from tokbridge_teacher.segmentation import ContentTokenizer


# Not with lookahead: it credits the student's merges of what this random teacher might write in pieces.
@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("top_k", [100, 5])
async def test_a_teacher_that_is_its_own_student_diverges_by_nothing(
    routing, top_k, built_teacher, teacher_folder, teacher_profile
):
    request = request_for(teacher_profile, top_k=top_k, routing=routing)
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(StudentRegistration.from_profile(teacher_profile))
        result = await client.score(request)
    q = reference_probs(teacher_folder, teacher_profile, request)
    assert own_divergences(result.rows, q, teacher_profile).max() < 1e-6
    np.testing.assert_allclose(result.rows.row_mass(), 1, atol=1e-6)
    realized = q[np.arange(len(request.token_ids)), request.token_ids]
    assert result.content_log_prob == pytest.approx(np.log(realized).sum(), abs=1e-3)
    assert result.stop_log_prob == pytest.approx(np.log(q[-1, sorted(teacher_profile.stop_ids)].sum()), abs=1e-4)


def reference_probs(folder, profile, request) -> np.ndarray:
    """The model's own distributions at the response's positions, float64 [N + 1, V], from one plain forward pass."""
    tokenizer = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)
    prompt = render_prompt(profile, tokenizer, list(request.messages), [], {}, "", request.response).token_ids
    ids = np.concatenate([prompt, request.token_ids]).astype(np.int64)
    model = load_model(str(folder), dtype="float32", device="cpu")
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0, len(prompt) - 1 :].double()
    return torch.softmax(logits, -1).numpy()


def own_divergences(rows, q, profile) -> np.ndarray:
    """KL(t‖q) a row, ∅ against the rest of q; the stop row against the mass of the stop set."""
    divergences = []
    for row in range(rows.num_rows):
        cells = slice(rows.row_offsets[row], rows.row_offsets[row + 1])
        t = np.exp(rows.cell_log_probs[cells].astype(np.float64))
        ids = rows.cell_ids[cells]
        if rows.cases[row] == RowCase.STOP:
            p = np.array([q[row, sorted(profile.stop_ids)].sum()])
        else:
            p = q[row].copy()
            p[profile.turn_end_id] = p[sorted(profile.stop_ids)].sum()
            p = p[ids]
        t, p = np.append(t, rows.residual[row]), np.append(p, 1 - p.sum())
        live = t > 0
        divergences.append(float((t[live] * np.log(t[live] / p[live])).sum()))
    return np.array(divergences)


async def test_what_the_service_says_of_a_response(built_teacher, student_profile, student_registration):
    request = request_for(student_profile)
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        result = await client.score(request)
        cut = await client.score(request_for(student_profile, stop_id=None))
        ahead = await client.score(
            request_for(student_profile, routing=Routing.BPE, spanning=Spanning.LOOKAHEAD, mass=0.0)
        )
    assert result.rows.num_rows == request.num_rows == cut.rows.num_rows + 1
    np.testing.assert_allclose(ahead.rows.row_mass()[ahead.rows.has_target()], 1, atol=1e-6)
    assert RowCase.EXCLUDED not in ahead.rows.cases
    assert result.scored_bytes == len(request.response)
    assert result.seam == "none"
    assert result.content_tokens > 0
    assert result.prompt_tokens > 0
    assert 0 < result.unresolved_mass <= sum(result.cases[case] for case in ("aligned", "interior", "spanning"))
    assert ahead.lookahead_tail > 0 == result.lookahead_tail
    assert RowCase.STOP not in cut.rows.cases
    assert np.isfinite(cut.stop_log_prob)


async def test_rows_leave_before_the_rest_is_computed(
    built_teacher, student_profile, student_registration, monkeypatch
):
    """The device pass waits after its first chunk until the client holds the first rows."""
    first_rows_arrived = threading.Event()
    plain = huggingface.marginalize

    def wait_after_the_first_chunk(logits, plan_slice, tables):
        assert plan_slice.start == 0 or first_rows_arrived.wait(20)
        return plain(logits, plan_slice, tables)

    monkeypatch.setattr(huggingface, "marginalize", wait_after_the_first_chunk)
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await stub.RegisterStudent(student_registration.to_messages())
        call = stub.Score(request_for(student_profile, "word " * 60).to_proto(student_registration.student_id))
        parts = aiter(call)
        first = await anext(parts)
        assert len(first.rows.cases) > 0
        assert not first_rows_arrived.is_set()
        first_rows_arrived.set()
        *_, last = [part async for part in parts]
    assert last.HasField("trailer")
