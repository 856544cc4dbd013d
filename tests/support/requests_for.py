"""Score requests of a tokenizer's own segmentation, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokbridge.requests import ScoreRequest
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.segmentation import ContentTokenizer

RESPONSE = "the answer is forty-two, because 12 + 30 is 42. 東京"


def request_for(profile: TokenizerProfile, response: str = RESPONSE, **changes: Any) -> ScoreRequest:
    """A finished response to a short question, segmented by `profile`; `changes` replace fields."""
    content = response.encode()
    ids = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary).segment(content).ids
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What is the answer?"}],
        "response": content,
        "token_ids": np.asarray(ids, np.int32),
        "stop_id": profile.turn_end_id,
        "mass": 1.0,
        "request_id": "test-request",
    }
    return ScoreRequest(**{**fields, **changes})
