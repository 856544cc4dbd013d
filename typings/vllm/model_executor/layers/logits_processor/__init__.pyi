import torch
from torch import nn

class LogitsProcessor(nn.Module):
    head_dtype: torch.dtype | None
