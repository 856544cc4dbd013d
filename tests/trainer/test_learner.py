"""The learner against a dense float64 reference, whatever the micro-batches, padding and head."""

import copy
import random

import numpy as np
import pytest
import torch

from support.dense_loss import DenseRow, dense_loss
from support.tiny_models import TINY_HYBRID, TINY_SCALED, TINY_SOFTCAPPED, save_tiny_model
from support.training import make_config, random_scored
from tokbridge.errors import CheckpointError, InvalidConfigError, NonFiniteGradientError
from tokbridge.targets import RowCase, RowFlag
from tokbridge_trainer.checkpoint import RunState
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.learner_snapshot import take_snapshot
from tokbridge_trainer.packing import response_ids
from tokbridge_trainer.samples import SampleKey, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.student import load_base
from tokbridge_trainer.student_text import load_student_text

PLAN = StepPlan(step=0, phase="on_policy", index=0, beta=0.5, lr=1e-3)
CPU = torch.device("cpu")


def make_batch(text, seed=0, count=5) -> StepBatch:
    rng = np.random.default_rng(seed)
    vocabulary_size = text.profile.tokenizer_size
    stop_id = text.profile.turn_end_id
    return StepBatch([random_scored(rng, vocabulary_size, SampleKey(0, i, 0), stop_id=stop_id) for i in range(count)])


def dense_rows(scored) -> tuple[list[int], list[DenseRow]]:
    """Places in the response of rows in the loss, and their targets; white space left out."""
    places, rows = [], []
    for i, case in enumerate(scored.rows.cases):
        if not RowCase(case).has_target or (scored.rows.flags[i] & RowFlag.WHITESPACE):
            continue
        cells = slice(scored.rows.row_offsets[i], scored.rows.row_offsets[i + 1])
        with np.errstate(divide="ignore"):
            log_residual = float(np.log(scored.rows.residual[i]))
        ids, log_probs = scored.rows.cell_ids[cells].tolist(), scored.rows.cell_log_probs[cells].tolist()
        places.append(i)
        rows.append(DenseRow(ids, log_probs, log_residual, case == RowCase.STOP))
    return places, rows


def reference(folder, batch):
    """Loss and gradients in float64, one sample at a time, from the model's own logits."""
    model = load_base(make_config(folder), str(folder), torch.float64, CPU)
    total = torch.zeros((), dtype=torch.float64)
    for scored in batch.scored:
        sample = scored.sample
        ids = torch.tensor([sample.prompt.token_ids.tolist() + sample.token_ids.tolist()])
        places, rows = dense_rows(scored)
        logits_RV = model(ids).logits[0, len(sample.prompt.token_ids) - 1 :][places]
        loss, _ = dense_loss(logits_RV, rows, beta=PLAN.beta, normalizer=batch.num_response_tokens)
        total = total + loss
    total.backward()
    return float(total.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def learner_gradients(config, text, batch):
    learner = Learner(config, text, None, 0)
    rows = learner._loss_rows(batch, PLAN.beta)
    loss = float(rows.divergence.sum()) / batch.num_response_tokens
    return loss, {name: parameter.grad for name, parameter in learner._model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 10_000},
        {"micro_batch_tokens": 40, "packing": False},
        {"gradient_checkpointing": True},
    ],
)
def test_loss_and_gradients_equal_the_dense_reference(student_folder, student_text, options):
    batch = make_batch(student_text)
    expected_loss, expected = reference(student_folder, batch)
    loss, gradients = learner_gradients(make_config(student_folder, **options), student_text, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    for name, gradient in expected.items():
        scale = gradient.abs().max()
        assert (gradients[name] - gradient).abs().max() <= 1e-4 * scale + 1e-9, name


@pytest.mark.parametrize("recipe", [TINY_SOFTCAPPED, TINY_SCALED], ids=lambda recipe: recipe.family)
def test_soft_caps_and_scaled_logits(tmp_path, recipe):
    folder = save_tiny_model(recipe, tmp_path / "model")
    text = load_student_text(make_config(folder))
    batch = make_batch(text)
    expected_loss, expected = reference(folder, batch)
    loss, gradients = learner_gradients(make_config(folder), text, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    name = "model.norm.weight"
    assert (gradients[name] - expected[name]).abs().max() <= 1e-3 * expected[name].abs().max()


def test_packing_feeds_no_padding_and_a_model_that_cannot_be_packed_is_padded(student_folder, student_text, tmp_path):
    batch = make_batch(student_text)
    packed = Learner(make_config(student_folder), student_text, None, 0).train_step(batch, PLAN)
    assert packed.metrics["tokens/padding"] == 0
    folder = save_tiny_model(TINY_HYBRID, tmp_path / "hybrid")
    text = load_student_text(make_config(folder))
    padded = Learner(make_config(folder), text, None, 0).train_step(batch, PLAN)
    assert padded.metrics["tokens/padding"] > 0
    assert padded.metrics["loss"] == pytest.approx(reference(folder, batch)[0], rel=1e-4)


def test_bfloat16_is_close_and_keeps_float32_parameters(student_folder, student_text):
    batch = make_batch(student_text)
    expected_loss, _ = reference(student_folder, batch)
    loss, gradients = learner_gradients(make_config(student_folder, dtype="bfloat16"), student_text, batch)
    assert loss == pytest.approx(expected_loss, rel=3e-2)
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


def test_a_step_learns_and_reports(student_folder, student_text):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    batch = make_batch(student_text, count=8)
    results = [learner.train_step(batch, PLAN) for _ in range(5)]
    losses = [result.metrics["loss"] for result in results]
    assert losses == sorted(losses, reverse=True)
    metrics = results[-1].metrics
    cases = sum(metrics[f"loss/{case.name.lower()}"] for case in RowCase if f"loss/{case.name.lower()}" in metrics)
    assert cases == pytest.approx(metrics["loss"])
    assert metrics["policy_version"] == 5
    assert metrics["policy_lag/max"] == 4
    counted = sum(metrics[f"rows/{case.name.lower()}"] for case in RowCase)
    assert counted == batch.num_response_tokens
    left_out = sum(value for name, value in metrics.items() if name.startswith("left_out/"))
    assert metrics["rows/learned"] + left_out == batch.num_response_tokens
    assert learner.weights().version == 5


def test_an_empty_batch_changes_no_parameter(student_folder, student_text):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    learner.train_step(make_batch(student_text), PLAN)
    before = copy.deepcopy(learner.weights().arrays)
    result = learner.train_step(StepBatch([]), PLAN)
    assert result.metrics["loss"] == 0.0
    for name, array in learner.weights().arrays.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_ends_the_run_before_the_step(student_folder, student_text, value):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    before = copy.deepcopy(learner.weights().arrays)
    (*_, parameter) = learner._model.parameters()
    parameter.register_hook(lambda gradient: torch.full_like(gradient, value))
    with pytest.raises(NonFiniteGradientError):
        learner.train_step(make_batch(student_text), PLAN)
    for name, array in learner.weights().arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_evaluation_changes_nothing(student_folder, student_text):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    batch = make_batch(student_text)
    metrics = learner.evaluate(batch, batch)
    assert metrics["loss"] == pytest.approx(reference(student_folder, batch)[0], rel=1e-4)
    assert metrics.keys() >= {"written/student_bits_per_byte", "rollouts/teacher_bits_per_byte"}
    assert learner.evaluate(None, None) == {}
    assert all(parameter.grad is None for parameter in learner._model.parameters())


@pytest.mark.parametrize("lora", [None, {"rank": 2, "dropout": 0.1}], ids=["full", "lora"])
def test_a_saved_learner_goes_on_as_if_it_had_not_stopped(student_folder, student_text, tmp_path, lora):
    config = make_config(student_folder, lora=lora)
    batches = [make_batch(student_text, seed) for seed in range(4)]
    plans = [StepPlan(step, "on_policy", step, 0.5, 1e-2) for step in range(4)]
    whole = Learner(config, student_text, None, 0)
    expected = [whole.train_step(batch, plan).metrics["loss"] for batch, plan in zip(batches, plans, strict=True)]
    first = Learner(config, student_text, None, 0)
    for batch, plan in zip(batches[:2], plans[:2], strict=True):
        first.train_step(batch, plan)
    first.save(tmp_path, RunState(2, 0, "data"))
    # What is trained while the checkpoint is written must not get into it.
    first.train_step(batches[2], plans[2])
    first.finish_saving()
    second = Learner(config, student_text, tmp_path / "checkpoint-000002", 2)
    random.seed(4)
    np.random.seed(4)
    torch.manual_seed(4)
    resumed = [second.train_step(b, p).metrics["loss"] for b, p in zip(batches[2:], plans[2:], strict=True)]
    assert resumed == expected[2:]
    assert second.weights().version == 4


def test_every_step_draws_from_its_own_place_whatever_was_drawn_before(student_folder, student_text):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    drawn = []
    for _ in range(2):
        learner.train_step(StepBatch([]), PLAN)
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
    learner.train_step(StepBatch([]), StepPlan(step=1, phase="on_policy", index=1, beta=0.5, lr=1e-3))
    assert random.random() != drawn[0][0]


def test_a_checkpoint_that_cannot_be_written_ends_the_next_step(student_folder, student_text, tmp_path):
    learner = Learner(make_config(student_folder), student_text, None, 0)
    (tmp_path / "root").write_text("a file where the folder should be")
    learner.save(tmp_path / "root", RunState(0, 0, "data"))

    def train_on():
        for _ in range(1000):
            learner.train_step(StepBatch([]), PLAN)

    with pytest.raises(CheckpointError):
        train_on()


def test_a_snapshot_keeps_its_moment(student_folder, student_text, tmp_path):
    config = make_config(student_folder)
    learner = Learner(config, student_text, None, 0)
    learner.train_step(make_batch(student_text), PLAN)
    before = copy.deepcopy(learner.weights().arrays)
    snapshot = take_snapshot(config, student_text.profile, learner._model, learner._optimizer)
    learner.train_step(make_batch(student_text, 1), PLAN)
    snapshot.write(tmp_path)
    again = Learner(config, student_text, tmp_path, 1).weights().arrays
    for name, array in before.items():
        np.testing.assert_array_equal(again[name], array)
        assert (learner.weights().arrays[name] != array).any()


def test_lora_trains_and_sends_adapters_only_and_exports_a_merged_model(student_folder, student_text, tmp_path):
    config = make_config(student_folder, lora={"rank": 2}, optimizer={"lr": 1e-2})
    learner = Learner(config, student_text, None, 0)
    batch = make_batch(student_text)
    learner.train_step(batch, PLAN)
    names = learner.weights().arrays
    assert names
    assert all("lora_" in name for name in names)
    learner.export(tmp_path)
    merged = Learner(make_config(tmp_path), load_student_text(make_config(tmp_path)), None, 0)
    assert merged.evaluate(batch, None)["loss"] == pytest.approx(learner.evaluate(batch, None)["loss"], rel=1e-4)


def test_an_adapter_on_the_head_is_refused(student_folder, student_text):
    config = make_config(student_folder, lora={"target_modules": ["lm_head"]})
    with pytest.raises(InvalidConfigError, match="head"):
        Learner(config, student_text, None, 0)


def test_response_ids_end_in_the_stop_token(student_text):
    for scored in make_batch(student_text).scored:
        ids = response_ids(scored.sample)
        assert len(ids) == scored.rows.num_rows == scored.sample.num_response_tokens
