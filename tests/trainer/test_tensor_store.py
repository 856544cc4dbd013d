"""Tensors come back as they went, whoever wrote and whoever reads."""

import pytest
import torch
import torch.multiprocessing as mp

from support.sharded_tensors import assert_same, emptied, some_tensors, write_and_read_shards
from tokbridge.errors import CheckpointError
from tokbridge_trainer import tensor_store
from tokbridge_trainer.tensor_store import load_tensors, save_tensors


@pytest.mark.parametrize("bytes_a_file", [1, 100, 2**31])
def test_what_was_written_is_read(tmp_path, monkeypatch, bytes_a_file):
    monkeypatch.setattr(tensor_store, "_BYTES_A_FILE", bytes_a_file)
    tensors = some_tensors()
    save_tensors(tensors, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == {1: 4, 100: 2, 2**31: 1}[bytes_a_file]
    read = emptied(tensors)
    load_tensors(read, tmp_path)
    assert_same(read, tensors)


def test_a_part_can_be_read_alone(tmp_path):
    tensors = some_tensors()
    save_tensors(tensors, tmp_path)
    read = emptied({"b.bias": tensors["b.bias"]})
    load_tensors(read, tmp_path)
    assert_same(read, {"b.bias": tensors["b.bias"]})


@pytest.mark.parametrize(
    "wanted", [{"c": torch.zeros(2)}, {"b.bias": torch.zeros(6)}], ids=["missing", "another shape"]
)
def test_what_is_not_there_as_asked_is_a_typed_error(tmp_path, wanted):
    save_tensors(some_tensors(), tmp_path)
    with pytest.raises(CheckpointError, match=next(iter(wanted))):
        load_tensors(wanted, tmp_path)
    with pytest.raises(CheckpointError):
        load_tensors(wanted, tmp_path / "nowhere")


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError):
        save_tensors(some_tensors(), tmp_path / "file")


@pytest.mark.integration
def test_shards_of_two_ranks_are_one_tensor_to_one_reader_and_to_two(tmp_path):
    tensors = some_tensors()
    mp.start_processes(write_and_read_shards, args=(2, tmp_path), nprocs=2, start_method="spawn")
    assert len(list((tmp_path / "state").glob("*.safetensors"))) == 2
    read = emptied(tensors)
    load_tensors(read, tmp_path / "state")
    assert_same(read, tensors)
