"""What is loaded and what is not: no pickle, and no code of a repository unless the operator says so."""

import json
import pickle
import sys

import pytest
import torch

from support.tiny_models import TINY_TEACHER, save_tiny_model
from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.backends.model_loading import load_model

CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import Qwen3Config, Qwen3ForCausalLM
class OwnConfig(Qwen3Config):
    model_type = "own_model"
class OwnForCausalLM(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


class Bomb:
    """Unpickled, it leaves a trace."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_folder_with_pickled_weights_alone_is_refused_unread(name, tmp_path):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(InvalidConfigError, match="safetensors") as refused:
        load_model(str(folder), dtype="float32", device="cpu")
    assert refused.value.details["field"] == "model"
    assert not (tmp_path / "ran").exists()


def test_a_pickle_beside_safetensors_is_not_read(tmp_path):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    assert isinstance(load_model(str(folder), dtype="float32", device="cpu"), torch.nn.Module)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_repository_runs_only_where_it_is_trusted(trusted, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    config |= {"model_type": "own_model", "auto_map": classes, "architectures": ["OwnForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    modules = dict(sys.modules)
    if trusted:
        model = load_model(str(folder), dtype="float32", device="cpu", trust_remote_code=True)
        assert type(model).__name__ == "OwnForCausalLM"
    else:
        with pytest.raises(InvalidConfigError):
            load_model(str(folder), dtype="float32", device="cpu")
    assert (tmp_path / "ran").exists() is trusted
    for name in sys.modules.keys() - modules.keys():
        if "transformers_modules" in name:
            del sys.modules[name]
