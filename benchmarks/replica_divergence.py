"""How far a teacher's rows move for innocent and for guilty reasons: what lies on either side of the bound on replicas.

Real weights: SmolLM2-135M-Instruct reads the line that the client's probe asks for. Innocent are another dtype and
another batch in the same dtype; guilty are weights that were disturbed or trained further. Jensen-Shannon divergence of
whole next-token distributions, in nats, over the last 32 positions; rows are coarser, so theirs is no larger.

    python benchmarks/replica_divergence.py
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "quickstart"))

from fetch_teacher import fetch_teacher  # pyright: ignore[reportMissingImports]

from support.real_tokenizers import cache_root
from tokbridge.client.probe import PROBE_TEXT
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.backends.model_loading import load_model

ROWS = 32
BATCHES = ((1, 1), (1, 16), (2, 7), (3, 40))
NOISES = (1e-3, 3e-3, 1e-2, 3e-2)
LEARNING_RATE = 1e-5
STEPS = (1, 3, 10)


def main() -> None:
    """Print one line for each reason."""
    torch.set_num_threads(1)
    folder = fetch_teacher(cache_root())
    model = load_model(str(folder), dtype="float32", device="cpu").eval()
    tokenizer = Tokenizer.from_str(load_tokenizer(folder).files.tokenizer_json)
    ids = torch.tensor(tokenizer.encode(PROBE_TEXT.decode()).ids)
    rows = log_probs_RV(model, ids[None])
    half = copy.deepcopy(model).bfloat16()
    half_rows = log_probs_RV(half, ids[None])
    show("bfloat16 against float32", rows, half_rows)
    for size, more in BATCHES:
        longer = torch.cat([ids, ids[:more]])
        batch_rows = log_probs_RV(half, longer.expand(size, -1), length=len(ids))
        show(f"bfloat16, in a batch of {size}, {more} more tokens", half_rows, batch_rows)
    for noise in NOISES:
        off = disturbed(model, noise)
        show(f"every weight off by a random {noise:g} of itself", rows, log_probs_RV(off, ids[None]))
    for steps in STEPS:
        trained = trained_further(model, ids[None], steps)
        show(f"{steps} steps of AdamW at {LEARNING_RATE:g} on the line", rows, log_probs_RV(trained, ids[None]))


def log_probs_RV(model: PreTrainedModel, ids: torch.Tensor, length: int | None = None) -> torch.Tensor:
    """[R, V], in float64, of the last `ROWS` predicted positions of the first sequence or of its `length` first ids."""
    end = (ids.shape[1] if length is None else length) - 1
    with torch.no_grad():
        logits = model(ids).logits[0, end - ROWS : end]
    return torch.log_softmax(logits.double(), -1)


def disturbed(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """A copy with every weight off by a random share of itself."""
    off = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in off.parameters():
            weight.mul_(1 + noise * torch.randn(weight.shape, generator=generator))
    return off


def trained_further(model: PreTrainedModel, ids: torch.Tensor, steps: int) -> PreTrainedModel:
    """A copy after so many steps on these ids."""
    trained = copy.deepcopy(model).requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        trained(ids, labels=ids).loss.backward()
        optimizer.step()
    return trained


def show(reason: str, p_RV: torch.Tensor, q_RV: torch.Tensor) -> None:
    """Print the largest and the mean divergence of two sets of rows."""
    mean_RV = ((p_RV.exp() + q_RV.exp()) / 2).log()
    divergence_R = sum((x.exp() * (x - mean_RV)).sum(-1) for x in (p_RV, q_RV)) / 2
    assert isinstance(divergence_R, torch.Tensor)
    print(f"{reason:48}  largest {divergence_R.max():.1e}  mean {divergence_R.mean():.1e}", flush=True)


if __name__ == "__main__":
    main()
