"""Every checkpoint becomes an ordinary model, the one that the run itself would have written."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from support.training import make_config, random_scored
from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint import RunState
from tokbridge_trainer.export import export_checkpoint
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.samples import SampleKey, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.student import export_model, load_base
from tokbridge_trainer.student_text import TOKENIZER_FILES

WITHOUT_RAY = """
import sys
sys.argv = ["tokbridge", "export", *sys.argv[1:]]
sys.modules["ray"] = sys.modules["grpc"] = None
from tokbridge_cli.main import main
main()
"""


@pytest.fixture(scope="module", params=[None, {"rank": 2}], ids=["full", "lora"])
def saved(request, student_folder, student_text, tmp_path_factory):
    """A learner after a step, in bfloat16, and the checkpoint it has written."""

    config = make_config(student_folder, lora=request.param, dtype="bfloat16", optimizer={"lr": 1e-2})
    learner = Learner(config, student_text, None, 0)
    key, stop_id = SampleKey(0, 0, 0), student_text.profile.turn_end_id
    scored = random_scored(np.random.default_rng(0), student_text.profile.tokenizer_size, key, stop_id=stop_id)
    learner.train_step(StepBatch([scored]), StepPlan(0, "on_policy", 0, 0.5, 1e-2))
    root = tmp_path_factory.mktemp("checkpoints")
    learner.save(root, RunState(1, 0, "data"))
    learner.finish_saving()
    return learner, root / "checkpoint-000001"


def test_the_command_writes_what_the_end_of_the_run_would(saved, student_folder, tmp_path):
    learner, checkpoint = saved
    learner.export(tmp_path / "expected")
    out = tmp_path / "out"
    command = [sys.executable, "-c", WITHOUT_RAY, str(checkpoint), str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(out)
    got, expected = (AutoModelForCausalLM.from_pretrained(folder) for folder in (out, tmp_path / "expected"))
    assert got.dtype == torch.bfloat16
    original = AutoModelForCausalLM.from_pretrained(student_folder, dtype=torch.bfloat16).state_dict()
    assert any((tensor != original[name]).any() for name, tensor in expected.state_dict().items())
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(got.get_parameter(name), tensor, rtol=0, atol=0, check_device=False)
    for name in TOKENIZER_FILES:
        assert (out / name).read_text() == (tmp_path / "expected" / name).read_text()


def test_another_type_can_be_asked_for(saved, tmp_path):
    _, checkpoint = saved
    export_checkpoint(checkpoint, tmp_path, "float32")
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.float32


def test_what_is_no_checkpoint_and_the_checkpoint_itself_are_refused(saved, tmp_path):
    _, checkpoint = saved
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="into itself"):
        export_checkpoint(checkpoint, checkpoint)


def test_a_place_where_no_folder_can_be_is_a_typed_error(saved, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write"):
        export_checkpoint(saved[1], tmp_path / "file")


def test_buffers_keep_their_type(student_folder, tmp_path):
    model = load_base(make_config(student_folder), str(student_folder), torch.float32, torch.device("cpu"))
    bias, counts = torch.tensor([1.001]), torch.tensor([100_001])
    model.register_buffer("bias", bias)
    model.register_buffer("counts", counts)
    export_model(model, tmp_path, torch.bfloat16)
    written = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close((written["bias"], written["counts"]), (bias, counts), rtol=0, atol=0)
    assert written["lm_head.weight"].dtype == torch.bfloat16
