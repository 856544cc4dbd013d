"""The configuration of a training run, as one typed document.

It loads without torch and without Ray. Files and overrides are read in `config_loading.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from tokbridge_trainer.config_sections import (
    EvalConfig,
    LogConfig,
    LoraConfig,
    LossConfig,
    OptimizerConfig,
    PromptsConfig,
    PushToHubConfig,
    RayConfig,
    RolloutConfig,
    SamplingConfig,
    SaveConfig,
    Section,
    StudentConfig,
    TemplateArguments,
    WarmStartConfig,
)
from tokbridge_trainer.config_teachers import TeacherConfig, TeachersConfig


class TrainConfig(Section):
    """Everything a run depends on; `tokbridge train --dry-run` prints it with all defaults filled in."""

    output_dir: Path
    """Metrics, samples, checkpoints and the final model go here."""
    student: StudentConfig
    prompts: PromptsConfig
    teacher: TeacherConfig | None = None
    """The teacher. Either this, `teachers` or `teachers_file`."""
    teachers: TeachersConfig | None = None
    """Several teachers, by name."""
    teachers_file: Path | None = None
    """A YAML file that holds the section `teachers` and is read again while the run goes on: teachers come and go."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    steps: int | None = Field(default=None, ge=1)
    """On-policy optimizer steps. Either this or `epochs`."""
    epochs: float | None = Field(default=None, gt=0.0, le=1e6)
    """Passes over the prompts. Either this or `steps`."""
    prompts_per_step: int = Field(default=8, ge=1)
    samples_per_prompt: int = Field(default=1, ge=1)
    max_prompt_tokens: int = Field(default=1024, ge=1)
    overlong: Literal["drop", "error"] = "drop"
    """What becomes of a prompt with more tokens than that; dropped ones are counted."""
    max_response_tokens: int = Field(default=512, ge=1)
    """Tokens after which a response is cut, its stop token included."""
    max_policy_lag: int = Field(default=1, ge=0)
    """Optimizer steps by which a sample's policy may be behind the one it trains; 0: strictly on-policy."""
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    chat_template_kwargs: TemplateArguments = Field(default_factory=dict)
    """Extra arguments of the student's chat template, such as `enable_thinking`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the computation. Trained parameters and the optimizer's state stay in float32."""
    device: str = "auto"
    """Torch device of learner and transformers' rollout workers; `auto`: CUDA where the actor has one."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Prompt and response tokens, padding included, of one forward and backward pass of one learner."""
    packing: bool = True
    """Sequences side by side in one row, without padding. A model that does not keep them apart there, which is tried
    at the start, is given padded rows; `tokens/padding` counts."""
    lora: LoraConfig | None = None
    loss: LossConfig = LossConfig()
    warm_start: WarmStartConfig | None = None
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
    resume: str = "auto"
    """`auto`: from the newest checkpoint in `output_dir`, if any; `never`; or the path of a checkpoint."""
    log: LogConfig = LogConfig()
    push_to_hub: PushToHubConfig | None = None
    ray: RayConfig = RayConfig()

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either `steps` or `epochs`")
        if sum(given is not None for given in (self.teacher, self.teachers, self.teachers_file)) != 1:
            raise ValueError("give one of `teacher`, `teachers` and `teachers_file`")
        if self.teacher and self.teacher.spanning == "lookahead" and self.teacher.routing != "bpe":
            raise ValueError("teacher.spanning: lookahead needs teacher.routing: bpe")
        if self.eval.every and not (self.eval.prompts or self.eval.responses):
            raise ValueError("eval.every needs eval.prompts or eval.responses")
        if self.rollout.backend == "vllm":
            self._check_vllm()
        return self

    def _check_vllm(self) -> None:
        """vLLM would cut responses short, change the temperature or wait for GPUs without saying so."""
        vllm, temperature, gpus = self.rollout.vllm, self.sampling.temperature, self.ray.rollout_gpus
        longest = self.max_prompt_tokens + self.max_response_tokens
        if vllm.max_model_len is not None and vllm.max_model_len < longest:
            raise ValueError(f"rollout.vllm.max_model_len must hold prompt and response, {longest} tokens")
        if not (temperature == 0.0 or 0.01 <= temperature <= 2.0):
            raise ValueError("with rollout.backend: vllm, sampling.temperature is 0 or between 0.01 and 2")
        if vllm.tensor_parallel_size > 1 and gpus not in (0.0, vllm.tensor_parallel_size):
            raise ValueError("ray.rollout_gpus must be rollout.vllm.tensor_parallel_size: a worker's GPUs")
        if vllm.weight_transfer == "nccl" and min(gpus, self.ray.learner_gpus) < 1.0:
            raise ValueError("rollout.vllm.weight_transfer: nccl needs whole GPUs for learner and rollout workers")

    @property
    def checkpoints_dir(self) -> Path:
        """Where checkpoints are written, and looked for."""
        return self.output_dir / "checkpoints"

    @property
    def prompt_columns(self) -> frozenset[str]:
        """Columns that travel with a prompt beside its conversation."""
        return frozenset(self.prompts.columns) | (self.teachers.columns if self.teachers else frozenset())

    @property
    def warm_start_steps(self) -> int:
        """Steps of the warm start, 0 without one."""
        return self.warm_start.steps if self.warm_start else 0

    @property
    def responses_per_step(self) -> int:
        """Responses of one on-policy step."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def warm_start_responses_per_step(self) -> int:
        """Responses of one step of the warm start, 0 without one."""
        return (self.warm_start.responses_per_step or self.responses_per_step) if self.warm_start else 0

    def on_policy_steps(self, num_prompts: int) -> int:
        """Steps on the student's own responses, given how many prompts there are."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * num_prompts / self.prompts_per_step))
