"""Samples as people read them: the lines of `samples.jsonl`."""

from __future__ import annotations

from tokbridge_trainer.samples import StepBatch


def sample_lines(batch: StepBatch, count: int) -> list[dict[str, str | int]]:
    """The first `count` samples of a batch as records: prompt, response, how it ended, its policy version."""
    return [
        {
            "prompt": str(scored.sample.prompt.messages[-1].get("content") or ""),
            "response": scored.sample.response.decode("utf-8", errors="replace"),
            "finish": "length" if scored.sample.stop_id is None else "stop",
            "prompt_index": scored.sample.key.prompt_index,
            "policy_version": scored.sample.policy_version,
            "tokens": scored.sample.num_response_tokens,
        }
        for scored in batch.scored[:count]
    ]
