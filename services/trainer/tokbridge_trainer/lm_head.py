"""The student's LM head by row chunks: logits into a given buffer, gradients out of it.

Arithmetic is in float32 (float64 for float64 hidden states) whatever the dtype of the operands: logits are never
rounded to bfloat16, whose steps of 2⁻⁸ would put a floor of about 1e-3 under every divergence. A head of another
dtype is widened block by block; on CUDA bfloat16 goes to the tensor cores as it is, with sums in float32. The module
knows nothing of targets.

Axes: R rows of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK_ROWS = 16_384
"""Vocabulary rows that are widened at a time: 64 MiB of float32 at h = 1024."""


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of logits and accumulators: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class LMHead:
    """logits = cap·tanh(s·(hidden·Wᵀ + b)/cap); without `softcap` just s·(hidden·Wᵀ + b).

    `weight` is [V, H], `bias` [V] or None; a bias of −inf forbids a token (padded head rows). Tied embeddings are fine.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.weight.shape[0]

    def operand(self, hidden_RH: Tensor) -> Tensor:
        """Hidden states in the dtype that the products take: widened, except bfloat16 on CUDA."""
        return hidden_RH if _stays_bfloat16(hidden_RH) else hidden_RH.to(arithmetic_dtype(hidden_RH.dtype))

    def logits_into(self, out_RV: Tensor, hidden_RH: Tensor) -> Tensor | None:
        """Write the logits; returns the slope of the softcap [R, V], None without one."""
        for start, stop, block_WH in self._blocks(out_RV.dtype):
            _multiply(hidden_RH, block_WH.t(), out_RV[:, start:stop])
        if self.bias is not None:
            out_RV.add_(self.bias)
        if self.scale != 1.0:
            out_RV.mul_(self.scale)
        if self.softcap is None:
            return None
        out_RV.div_(self.softcap).tanh_()
        slope_RV = out_RV.square().neg_().add_(1.0)
        out_RV.mul_(self.softcap)
        return slope_RV

    def chain(self, gradient_RV: Tensor, slope_RV: Tensor | None) -> None:
        """Turn the gradient in the logits into that in hidden·Wᵀ + b, in place."""
        if slope_RV is not None:
            gradient_RV.mul_(slope_RV)
        if self.scale != 1.0:
            gradient_RV.mul_(self.scale)

    def hidden_gradient_into(self, out_RH: Tensor, gradient_RV: Tensor) -> None:
        """out = gradient · W, for the gradient of hidden·Wᵀ."""
        product_RH = torch.zeros(out_RH.shape, dtype=gradient_RV.dtype, device=out_RH.device)
        for start, stop, block_WH in self._blocks(gradient_RV.dtype):
            _multiply(gradient_RV[:, start:stop], block_WH, product_RH, accumulate=True)
        out_RH.copy_(product_RH)

    def add_weight_gradient(self, accumulator_VH: Tensor, gradient_RV: Tensor, hidden_RH: Tensor) -> None:
        """accumulator += gradientᵀ · hidden; the accumulator has the arithmetic's dtype."""
        step = _BLOCK_ROWS if hidden_RH.dtype != accumulator_VH.dtype else self.vocabulary_size
        for start in range(0, self.vocabulary_size, step):
            block = slice(start, start + step)
            _multiply(gradient_RV[:, block].t(), hidden_RH, accumulator_VH[block], accumulate=True)

    def _blocks(self, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
        """(first row, end row, rows of W) in an operand dtype that `_multiply` takes beside `dtype`."""
        size = self.vocabulary_size
        if self.weight.dtype == dtype:
            yield 0, size, self.weight
            return
        widened_WH = None
        if not _stays_bfloat16(self.weight):
            widened_WH = self.weight.new_empty((min(size, _BLOCK_ROWS), self.weight.shape[1]), dtype=dtype)
        for start in range(0, size, _BLOCK_ROWS):
            block_WH = self.weight[start : start + _BLOCK_ROWS]
            stop = start + len(block_WH)
            yield start, stop, block_WH if widened_WH is None else widened_WH[: len(block_WH)].copy_(block_WH)


def _stays_bfloat16(tensor: Tensor) -> bool:
    """CUDA multiplies bfloat16 with sums in float32; elsewhere it is widened first, as is float16 everywhere."""
    return tensor.is_cuda and tensor.dtype == torch.bfloat16


def _multiply(left: Tensor, right: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """out (+)= left · right in the dtype of `out`.

    Where one operand is bfloat16 on CUDA, both are (as autocast would do), with sums in float32.
    """
    if out.is_cuda and torch.bfloat16 in (left.dtype, right.dtype):
        product = torch.mm(left.bfloat16(), right.bfloat16(), out_dtype=out.dtype)
        out.add_(product) if accumulate else out.copy_(product)
    elif accumulate:
        out.addmm_(left, right)
    else:
        torch.mm(left, right, out=out)
