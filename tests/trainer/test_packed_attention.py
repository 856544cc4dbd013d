"""Sequences side by side in one row: as if each were alone, or the model is not packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from support.tiny_models import TINY_HYBRID, TINY_SCALED, TINY_SOFTCAPPED, TINY_STUDENT, save_tiny_model
from support.training import make_config
from tokbridge_trainer import packed_attention
from tokbridge_trainer.packed_attention import allow_packing, hidden_states, keeps_sequences_apart
from tokbridge_trainer.packing import lay_out
from tokbridge_trainer.student import load_base

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    recipes = (TINY_STUDENT, TINY_SOFTCAPPED, TINY_SCALED, TINY_HYBRID)
    return {recipe.family: save_tiny_model(recipe, root / recipe.family) for recipe in recipes}


def load(folder, attention=None):
    return load_base(
        make_config(folder, student={"model": str(folder), "attention": attention}), str(folder), torch.float32, CPU
    ).eval()


def sequences(seed=0, lengths=(30, 1, 22, 7)):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 300, length) for length in lengths]


@pytest.mark.parametrize(
    ("family", "attention"),
    [("qwen3", "sdpa"), ("qwen3", "eager"), ("granite", "sdpa"), ("gemma2", "eager")],
)
def test_each_sequence_has_the_states_it_has_alone(folders, family: str, attention: str):
    """Gemma2's window of 16 is shorter than two of the sequences."""
    model, plain = load(folders[family], attention), load(folders[family], "eager")
    allow_packing(model)
    tokens = lay_out(sequences(), packed=True, device=CPU)
    assert tokens.num_padding == 0
    with torch.no_grad():
        packed = hidden_states(model, tokens, torch.float32)
        for start, ids in zip(tokens.starts_S, sequences(), strict=True):
            alone = plain.get_decoder()(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0]
            torch.testing.assert_close(packed[start : start + len(ids)], alone, rtol=1e-4, atol=1e-4)
    assert keeps_sequences_apart(model, torch.float32)


def test_linear_attention_without_its_kernels_is_not_packed(folders):
    model = load(folders["qwen3_5"])
    allow_packing(model)
    assert not keeps_sequences_apart(model, torch.float32)


def test_a_model_that_mixes_sequences_is_found_out(folders, monkeypatch):
    """With attention over the whole row, whatever bounds it is given."""
    sdpa = AttentionInterface()["sdpa"]

    def mixing(*args, sequence_lengths=None, **kwargs):
        return sdpa(*args, **kwargs)

    monkeypatch.setattr(packed_attention, "sdpa_per_sequence", mixing)
    model = load(folders["qwen3"])
    allow_packing(model)
    assert not keeps_sequences_apart(model, torch.float32)


def test_without_preparation_sdpa_falls_back_to_a_mask_and_is_still_right(folders):
    assert keeps_sequences_apart(load(folders["qwen3"], "sdpa"), torch.float32)


def test_padded_rows_hold_one_sequence_each():
    tokens = lay_out([np.array([5, 6, 7]), np.array([8])], packed=False, device=CPU)
    assert tokens.input_ids_BL.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert tokens.attention_mask_BL.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert (tokens.starts_S, tokens.num_padding) == ((0, 3), 2)


def test_packed_rows_count_positions_anew():
    tokens = lay_out([np.array([5, 6, 7]), np.array([8])], packed=True, device=CPU)
    assert tokens.input_ids_BL.tolist() == [[5, 6, 7, 8]]
    assert tokens.position_ids_BL.tolist() == [[0, 1, 2, 0]]
    assert (tokens.starts_S, tokens.lengths_S, tokens.num_padding) == ((0, 3), (3, 1), 0)


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_to_read_is_one_token(packed: bool):
    assert lay_out([], packed=packed, device=CPU).input_ids_BL.tolist() == [[0]]
