"""The plain PyTorch loop against a real service: its loss, that it learns, and the program as a whole."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.example_programs import CONVERSATIONS, EXAMPLES, load_file, loss_from_logits
from tokbridge.client import BlockingTeacherClient, TeacherClient
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge_trainer.target_tensors import TargetTensors


@pytest.fixture
def distiller(teacher_address, tiny_student):
    student = StudentTokenizer.load(tiny_student)
    model = AutoModelForCausalLM.from_pretrained(tiny_student, dtype=torch.float32)
    with BlockingTeacherClient(TeacherClient(teacher_address)) as teacher:
        teacher.connect(student.registration)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        yield load_file(EXAMPLES / "plain_pytorch" / "distil.py").Distiller(
            model, student, teacher, optimizer, max_new_tokens=24
        )


def test_a_step_reports_the_loss_that_dense_logits_give(distiller, monkeypatch):
    torch.manual_seed(1)
    written = []
    write = distiller.write
    monkeypatch.setattr(distiller, "write", lambda ids: written.append((len(ids), write(ids))) or written[-1][1])
    initial = {name: value.clone() for name, value in distiller.model.state_dict().items()}
    loss = distiller.step(CONVERSATIONS)
    distiller.model.load_state_dict(initial)
    lengths, sequences = zip(*written, strict=True)
    requests = [
        distiller.student.request(messages, sequence[length:])
        for messages, length, sequence in zip(CONVERSATIONS, lengths, sequences, strict=True)
    ]
    targets = [TargetTensors.from_rows([result.rows]) for result in distiller.teacher.score_all(requests)]
    expected = loss_from_logits(distiller.model, sequences, lengths, targets) / sum(r.num_rows for r in requests)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_the_loss_falls(distiller):
    torch.manual_seed(0)
    losses = [distiller.step(CONVERSATIONS) for _ in range(6)]
    assert sum(losses[-2:]) < 0.8 * sum(losses[:2])


def test_the_program_trains_and_saves(teacher_address, tiny_student, tmp_path, monkeypatch, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"messages": messages}) for messages in CONVERSATIONS))
    options = {"teacher": teacher_address, "student": tiny_student, "prompts": prompts, "output": tmp_path / "out"}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    monkeypatch.setattr(
        sys, "argv", ["distil.py", *arguments, "--steps=2", "--prompts-per-step=3", "--max-new-tokens=8"]
    )
    load_file(EXAMPLES / "plain_pytorch" / "distil.py").main()
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step")] == ["0", "1"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_it_stays_one_short_file():
    assert len((EXAMPLES / "plain_pytorch" / "distil.py").read_text().splitlines()) < 120
