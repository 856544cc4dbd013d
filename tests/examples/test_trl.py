"""The TRL trainer against a real service and the installed TRL: its loss over accumulated micro-batches, its logs, its
evaluation, and that it learns."""

import ast
import json
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from support.example_programs import CONVERSATIONS, EXAMPLES, load_file, loss_from_logits
from tokbridge.client import BlockingTeacherClient, TeacherClient
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge_trainer.target_tensors import TargetTensors


@pytest.fixture(scope="module")
def program():
    return load_file(EXAMPLES / "trl" / "distillation.py")


@pytest.fixture
def make_trainer(program, teacher_address, tiny_student, tmp_path):
    student = StudentTokenizer.load(tiny_student)
    with BlockingTeacherClient(TeacherClient(teacher_address)) as teacher:
        teacher.connect(student.registration)

        def make(**options):
            config = program.DistillationConfig(
                output_dir=str(tmp_path / "run"),
                per_device_train_batch_size=2,
                per_device_eval_batch_size=2,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                max_new_tokens=20,
                lr_scheduler_type="constant",
                **options,
            )
            rows = Dataset.from_list([{"messages": messages} for messages in CONVERSATIONS])
            return program.DistillationTrainer(
                str(tiny_student), config, teacher=teacher, student=student, train_dataset=rows, eval_dataset=rows
            )

        yield make


def test_one_normalizer_holds_for_all_micro_batches_of_a_step(make_trainer, monkeypatch):
    trainer = make_trainer(max_steps=1, gradient_accumulation_steps=2, learning_rate=1e-3)
    seen = []
    sample = trainer.get_batch_samples
    monkeypatch.setattr(trainer, "get_batch_samples", lambda *a: seen.append(sample(*a)) or seen[-1])
    initial = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert any(not torch.equal(initial[name], value) for name, value in trainer.model.state_dict().items())
    trainer.model.load_state_dict(initial)
    ((batches, normalizer),) = seen
    assert len(batches) == 2
    assert int(normalizer) == sum(batch["response_tokens"] for batch in batches)
    total = sum(dense_loss(trainer.model, batch) for batch in batches)
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(total / int(normalizer), rel=1e-3)
    left_out = sum(value for name, value in logged.items() if name.startswith("distillation/rows_left_out/"))
    assert logged["distillation/rows_in_loss"] + left_out == int(normalizer)
    assert logged["distillation/responses"] == 4


def dense_loss(model: torch.nn.Module, batch: dict) -> float:
    """Of a micro-batch: every response unpadded and alone."""
    total = 0.0
    for index, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"], strict=True)):
        is_own = batch["targets"].response_index == index
        row_targets = rows_where(batch["targets"], is_own)
        prompt_length = int(mask[: batch["first_columns"][index]].sum())
        total += loss_from_logits(model.eval(), [ids[mask.bool()]], [prompt_length], [row_targets])
    return total


def rows_where(targets: TargetTensors, chosen: torch.Tensor) -> TargetTensors:
    widths = targets.row_offsets.diff()
    cells = torch.repeat_interleave(chosen, widths)
    fields = {name: getattr(targets, name)[chosen] for name in ROW_FIELDS}
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), widths[chosen].cumsum(0)])
    return TargetTensors(
        cell_ids=targets.cell_ids[cells], cell_log_probs=targets.cell_log_probs[cells], row_offsets=offsets, **fields
    )


ROW_FIELDS = ("residual_log_mass", "is_stop", "weights", "cases", "emitted_log_probs", "response_index", "row_index")


def test_the_loss_falls_and_an_evaluation_gives_one_too(make_trainer):
    torch.manual_seed(0)
    trainer = make_trainer(max_steps=16, learning_rate=5e-3)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 16
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    assert trainer.evaluate()["eval_loss"] < before


@pytest.mark.nightly
def test_the_program_runs_on_two_processes(teacher_address, tiny_student, tmp_path):
    """Each process scores its own responses, gradients are averaged over both."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"messages": messages}) for messages in CONVERSATIONS * 16))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = {"teacher": teacher_address, "student": tiny_student, "prompts": prompts, "output": tmp_path / "out"}
    limits = ["--steps=2", "--max-new-tokens=8"]
    arguments = [f"--{name}={value}" for name, value in options.items()]
    program = str(EXAMPLES / "trl" / "train.py")
    command = [*launch, program, *arguments, *limits]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    logged = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("{'loss'")]
    assert len(logged) == 2
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
