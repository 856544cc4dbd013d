from enum import Enum
from typing import Any

class RequestOutputKind(Enum):
    FINAL_ONLY = 2

class SamplingParams:
    def __init__(self, *, output_kind: RequestOutputKind = ..., **arguments: Any) -> None: ...
