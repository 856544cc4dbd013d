"""Everything that a run reads before anything starts: tokenizer, prompts, written responses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig

from tokbridge.errors import InvalidConfigError
from tokbridge.hub import local_folder
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.prompts import PromptSet, load_evaluation_prompts, load_prompts
from tokbridge_trainer.samples import Prompt
from tokbridge_trainer.student_text import StudentText, load_student_text
from tokbridge_trainer.written_responses import WrittenSet, load_evaluation_responses, load_warm_start


@dataclass(frozen=True)
class RunData:
    """The data of a run, and how many steps it makes of them."""

    text: StudentText
    prompts: PromptSet
    evaluation_prompts: PromptSet | None
    evaluation_responses: WrittenSet | None
    warm_start: WrittenSet | None
    end_step: int
    """Steps of both phases."""
    on_policy_steps: int
    fingerprint: str
    """Of what is trained on and in which order, the seed aside: equal in a run and in what resumes it."""

    @property
    def all_prompts(self) -> list[Prompt]:
        """Everything that teachers may be asked about."""
        sets = [prompts.prompts for prompts in (self.prompts, self.evaluation_prompts) if prompts]
        written = [responses.responses for responses in (self.warm_start, self.evaluation_responses) if responses]
        return [*chain(*sets), *(response.prompt for response in chain(*written))]


def load_data(config: TrainConfig) -> RunData:
    """Read tokenizer, prompts and warm start, and check that they fit the student."""
    text = load_student_text(config)
    _check_context_length(config)
    prompts = load_prompts(config, text)
    warm_start = load_warm_start(config, text)
    on_policy_steps = config.on_policy_steps(len(prompts.prompts))
    return RunData(
        text=text,
        prompts=prompts,
        evaluation_prompts=load_evaluation_prompts(config, text),
        evaluation_responses=load_evaluation_responses(config, text),
        warm_start=warm_start,
        end_step=config.warm_start_steps + on_policy_steps,
        on_policy_steps=on_policy_steps,
        fingerprint=data_fingerprint(config, prompts, warm_start),
    )


def data_fingerprint(config: TrainConfig, prompts: PromptSet, warm_start: WrittenSet | None) -> str:
    """SHA-256, as hex, over the trained ids in the order of the files and every setting that orders them."""
    written = warm_start.responses if warm_start else []
    order = {
        "prompts": len(prompts.prompts),
        "shuffle": prompts.shuffle,
        "prompts_per_step": config.prompts_per_step,
        "samples_per_prompt": config.samples_per_prompt,
        "warm_start_steps": config.warm_start_steps,
        "warm_start_responses": len(written),
        "warm_start_responses_per_step": config.warm_start_responses_per_step,
    }
    digest = hashlib.sha256(json.dumps(order).encode())
    for prompt in prompts.prompts:
        digest.update(_ids_as_bytes(prompt.token_ids))
    for response in written:
        stop_ids = np.array([] if response.stop_id is None else [response.stop_id], np.int32)
        for ids in (response.prompt.token_ids, response.token_ids, stop_ids):
            digest.update(_ids_as_bytes(ids))
    return digest.hexdigest()


def _ids_as_bytes(ids: NDArray[np.int32]) -> bytes:
    """The length goes first, so that two lists never read like one."""
    return len(ids).to_bytes(8, "little") + ids.tobytes()


def _check_context_length(config: TrainConfig) -> None:
    source = config.student.model
    folder = local_folder(source, weights=True)
    try:
        model = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"cannot load the student {source!r}: {error}", field="student.model") from error
    limit = getattr(model.get_text_config(decoder=True), "max_position_embeddings", None)
    needed = config.max_prompt_tokens + config.max_response_tokens
    if limit is not None and needed > limit:
        raise InvalidConfigError(
            f"max_prompt_tokens + max_response_tokens is {needed}, the student's context {limit}",
            field="max_response_tokens",
        )
