"""docs/library.md: its program runs as it stands there, and the names it promises are there."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import torch

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]

PUBLIC = {
    "tokbridge.client": {
        "BlockingTeacherClient": ["client"],
        "TeacherClient": [
            "targets",
            "timeout_s",
            "connect_timeout_s",
            "max_silence_s",
            "retry",
            "breaker",
            "expectation",
            "max_divergence",
            "credentials",
            "metadata",
            "clock",
            "sleep",
            "random",
            "resolve",
        ],
        "ScoreRequest": [
            "messages",
            "response",
            "token_ids",
            "stop_id",
            "tools",
            "template_arguments",
            "student_tail",
            "routing",
            "spanning",
            "top_k",
            "mass",
            "request_id",
        ],
        "ScoreResult": [],
    },
    "tokbridge.student_tokenizer": {
        "StudentTokenizer": ["profile", "template_arguments", "generation_prompt_tail"],
        "StudentTokenizer.load": ["source", "head_size", "template_arguments"],
        "StudentTokenizer.prompt_ids": ["self", "messages", "tools"],
        "StudentTokenizer.request": [
            "self",
            "messages",
            "sampled_ids",
            "tools",
            "routing",
            "spanning",
            "top_k",
            "mass",
        ],
        "StudentTokenizer.stop_ids": [],
        "StudentTokenizer.forbidden_ids": [],
        "StudentTokenizer.registration": [],
    },
    "tokbridge.targets": {"TargetRows": [], "TargetRows.to_torch": ["self", "device"], "RowCase": [], "RowFlag": []},
    "tokbridge.mixture": {"mix_rows": ["parts", "weights"], "Mixture": ["rows", "shares_TR"]},
    "tokbridge.truncation": {"truncate_rows": ["rows", "emitted_ids", "top_k", "mass"]},
    "tokbridge.errors": {"TokbridgeError": []},
    "tokbridge_trainer.target_tensors": {
        "TargetTensors": [],
        "TargetTensors.from_rows": ["responses", "whitespace", "generators", "device"],
        "TargetTensors.predictor_index": ["self", "first_columns_B", "width"],
        "WhitespaceRule": [],
    },
    "tokbridge_trainer.loss": {
        "bpm_loss": [
            "hidden_RH",
            "head_weight_VH",
            "targets",
            "normalizer",
            "beta",
            "skew",
            "head_bias",
            "logit_scale",
            "softcap",
            "emitted_ids",
            "chunk_rows",
        ],
        "LossOutput": ["loss", "row_divergence", "row_log_residual", "row_argmax_ids", "row_emitted_log_probs"],
    },
    "tokbridge_trainer.sparse_divergence": {
        "sparse_divergence": ["logits_RV", "targets", "normalizer", "beta", "skew", "emitted_ids", "chunk_rows"]
    },
    "tokbridge_trainer.head": {"find_head_form": ["model"], "lm_head": ["model"], "decoder_of": ["model"]},
}
"""Every public name and its arguments; a change here is a change for users and belongs into the CHANGELOG."""


def resolved(module: str, name: str) -> object:
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_public_names_take_what_they_took():
    for module, names in PUBLIC.items():
        for name, arguments in names.items():
            found = resolved(module, name)
            if arguments:
                assert callable(found)
                assert list(inspect.signature(found).parameters) == arguments, f"{module}.{name}"


def test_every_name_of_the_page_is_pinned():
    for dotted in re.findall(r"`(tokbridge[a-z_.]*\.[A-Za-z_]+(?:\.[A-Za-z_]+)*)`", PAGE.split("## The parts")[1]):
        module, _, name = dotted.rpartition(".")
        assert dotted in PUBLIC or name in PUBLIC.get(module, {}), dotted


def test_the_thirty_lines_run_and_learn(teacher_address, tiny_student, capsys):
    program = PROGRAM.replace("Qwen/Qwen3.5-2B", str(tiny_student)).replace("teacher-node:50051", teacher_address)
    assert len([line for line in program.splitlines() if line.strip()]) <= 36
    torch.manual_seed(0)
    exec(compile(program.replace("lr=1e-6", "lr=1e-2").replace("range(3)", "range(6)"), "library.md", "exec"), {})
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 6
    assert min(losses[-2:]) < losses[0]


def test_client_and_loss_come_without_ray_and_the_client_without_torch():
    seen = "print([name for name in ('torch', 'ray', 'peft') if name in sys.modules])"
    code = f"import sys, tokbridge.client; {seen}; import tokbridge_trainer.sparse_divergence; {seen}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "['torch']"]
