"""Everything that a run reads before anything starts: tokenizer, prompts, written responses."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import AutoConfig

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.prompts import PromptSet, load_evaluation_prompts, load_prompts
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


def load_data(config: TrainConfig) -> RunData:
    """Read tokenizer, prompts and warm start, and check that they fit the student."""
    text = load_student_text(config)
    _check_context_length(config)
    prompts = load_prompts(config, text)
    on_policy_steps = config.on_policy_steps(len(prompts.prompts))
    return RunData(
        text=text,
        prompts=prompts,
        evaluation_prompts=load_evaluation_prompts(config, text),
        evaluation_responses=load_evaluation_responses(config, text),
        warm_start=load_warm_start(config, text),
        end_step=config.warm_start_steps + on_policy_steps,
        on_policy_steps=on_policy_steps,
    )


def _check_context_length(config: TrainConfig) -> None:
    model = AutoConfig.from_pretrained(config.student.model).get_text_config(decoder=True)
    limit = getattr(model, "max_position_embeddings", None)
    needed = config.max_prompt_tokens + config.max_response_tokens
    if limit is not None and needed > limit:
        raise InvalidConfigError(
            f"max_prompt_tokens + max_response_tokens is {needed}, the student's context {limit}",
            field="max_response_tokens",
        )
