"""The sections of a training configuration, one class each; those of the teachers stand in `config_teachers.py`.

Only pydantic and the standard library are imported: a configuration is read, checked and printed without torch or Ray.
What the values mean together is checked in `config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"does not go into JSON, as what is sent to a teacher must: {error}; quote text") from None
    return value


TemplateArguments = Annotated[dict[str, Any], AfterValidator(_check_json)]
"""Arguments of a chat template; they travel to the teacher. (YAML reads `2024-07-26` as a date.)"""
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, numbers are finite, values are fixed once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_for_number(cls, value: object, info: ValidationInfo) -> object:
        """Python counts `true` as 1; in a document it is a slip."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("true and false are no values of this key")
        return value


class StudentConfig(Section):
    """The model that learns."""

    model: str
    """Folder or hub id (`ORG/NAME`, or `ORG/NAME@REVISION`) of the student: weights, as safetensors, `config.json` and
    `tokenizer.json`."""
    chat_template: Path | None = None
    """A Jinja file that replaces the tokenizer's own chat template."""
    generation_prompt_tail: str | None = None
    """Text of the student's thinking opening (g_s of the method); unset: read from its chat template."""
    attention: str | None = None
    """Attention implementation of transformers (`sdpa`, `eager`, `flash_attention_2`); unset: its default."""


class PromptsConfig(Section):
    """The conversations that the student answers."""

    files: list[str] = Field(min_length=1)
    """JSONL or Parquet files (globs allowed), with a `messages` or a `prompt` column and, if wanted, `tools`."""
    limit: int | None = Field(default=None, ge=1)
    """Use the first so many rows only."""
    shuffle: bool = True
    """Order by the seed and the epoch; else as in the files."""
    columns: list[str] = Field(default_factory=list)
    """Further columns that travel with a prompt, for the rules and weights of a `teachers_file`; those that `teachers`
    names travel anyway. Text, numbers or truth values."""


class SamplingConfig(Section):
    """How the student samples; never part of the loss."""

    temperature: float = Field(default=1.0, ge=0.0)
    """0: the most likely token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    """0: no limit."""
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)


TAKEN_ENGINE_ARGS: Mapping[str, str] = {
    "model": "the student, `student.model`",
    "dtype": "set by the key `dtype`",
    "seed": "set by the key `seed`",
    "max_num_seqs": "set by `rollout.batch_size`",
    "tensor_parallel_size": "a key of `rollout.vllm` itself",
    "gpu_memory_utilization": "a key of `rollout.vllm` itself",
    "max_model_len": "a key of `rollout.vllm` itself",
    "enforce_eager": "a key of `rollout.vllm` itself",
    "load_format": "weights come from the learner",
    "skip_tokenizer_init": "prompts and responses are token ids",
    "generation_config": "only `sampling` decides how the student samples",
    "speculative_config": "vLLM would then ignore which tokens are forbidden",
    "weight_transfer_config": "how weights arrive is the trainer's matter",
    "worker_extension_cls": "how weights arrive is the trainer's matter",
}
"""Arguments of vLLM's engine that `engine_args` may not hold, and why."""


class VllmConfig(Section):
    """The vLLM engine of each rollout worker; read where `rollout.backend` is `vllm`."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0.0, le=1.0)
    """Share of a GPU's memory (of the machine's, in vLLM's CPU build) for weights and key-value cache."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Unset: `max_prompt_tokens` + `max_response_tokens`, the least that holds every response."""
    enforce_eager: bool = False
    """Without CUDA graphs and compilation: starts sooner, writes more slowly."""
    weight_transfer: Literal["object_store", "nccl"] = "object_store"
    """How weights come from the learner: as arrays through Ray's object store, anywhere; or from GPU to GPU, where the
    loss of one worker is the loss of all that are connected: training goes back to the last checkpoint."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's `EngineArgs` by name, such as `kv_cache_dtype` or `max_num_batched_tokens`."""

    @field_validator("engine_args")
    @classmethod
    def _check_not_taken(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(value.keys() & TAKEN_ENGINE_ARGS.keys())
        if taken:
            raise ValueError("; ".join(f"{name}: {TAKEN_ENGINE_ARGS[name]}" for name in taken))
        return value


class RolloutConfig(Section):
    """Who writes the student's responses, how many at once, and by how many workers."""

    backend: Literal["transformers", "vllm"] = "transformers"
    """The engine in each worker; `vllm` wants the extra `vllm`, and an environment where the whole trainer runs."""
    workers: int = Field(default=1, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    """Responses that one worker writes at once: a batch of transformers' `generate`, vLLM's `max_num_seqs`.
    Unset: 32, and vLLM's own default."""
    vllm: VllmConfig = VllmConfig()

    @property
    def ranks_per_broadcast_engine(self) -> int:
        """Ranks of each engine where weights are broadcast from GPU to GPU; 0: they are not."""
        broadcast = self.backend == "vllm" and self.vllm.weight_transfer == "nccl"
        return self.vllm.tensor_parallel_size if broadcast else 0


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0.0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly from 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Where `linear` and `cosine` end, as a share of `lr`."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)


class LoraConfig(Section):
    """Low-rank adapters instead of full fine-tuning."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0.0)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Module names, as in `peft`."""


class LossConfig(Section):
    """The divergence of spec §7."""

    beta: float = Field(default=0.5, ge=0.0, le=1.0)
    """0: forward KL; 1: reverse (skewed) KL; between: generalised Jensen-Shannon."""
    skew: float = Field(default=0.1, gt=0.0, lt=1.0)
    """λ of the skewed reverse KL; read only where beta = 1."""
    whitespace: Literal["drop", "keep", "random"] = "drop"
    """Rows whose emitted token is white space: left out, kept, or as many random other rows left out instead."""
    chunk_rows: int | None = Field(default=None, ge=1)
    """Rows whose logits are held at once; unset: what fits 256 MiB."""


class WarmStartConfig(Section):
    """A phase on text that the teacher wrote, before the student learns from its own."""

    steps: int = Field(ge=1)
    responses: list[str] = Field(min_length=1)
    """JSONL files with `messages`, `response` and `finish`, as `tokbridge teacher generate` writes them."""
    responses_per_step: int | None = Field(default=None, ge=1)
    """Unset: `prompts_per_step` × `samples_per_prompt`."""
    beta: float = Field(default=0.0, ge=0.0, le=1.0)
    lr: float | None = Field(default=None, gt=0.0)
    """Unset: `optimizer.lr`."""


class EvalConfig(Section):
    """Measurements during training, on data that is not trained on."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations, with one before the first step and one after the last; 0: none."""
    prompts: list[str] = Field(default_factory=list)
    """Files of held-out conversations."""
    responses: list[str] = Field(default_factory=list)
    """JSONL files of teacher-written responses to score the student on."""
    limit: int | None = Field(default=None, ge=1)


class SaveConfig(Section):
    """Checkpoints."""

    every: int = Field(default=0, ge=0)
    """Steps between checkpoints; one is always written after the last step. 0: only that one."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on the disk."""
    max_age_hours: float | None = Field(default=None, gt=0.0)
    """Older ones go even where `keep` would leave them, the newest never; unset: whatever their age."""


class LogConfig(Section):
    """What is written while training; the JSONL file of metrics is always written."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project name at Weights & Biases; unset: not used."""
    samples: int = Field(default=4, ge=0)
    """Responses of each step that are written to `samples.jsonl`."""
    progress: bool = True
    """A progress display, where the output is a terminal."""


class PushToHubConfig(Section):
    """Upload of the final model. Its repository is made before training: a token that may not is found out then."""

    repo_id: str
    """`ORG/NAME` at the Hugging Face hub."""
    private: bool = True
    """Of a repository that is made; one that is there stays as it is."""


class RayConfig(Section):
    """The cluster, and what its actors take."""

    address: str | None = None
    """Address of a running cluster (`auto` finds one); unset: a local one is started."""
    learners: int = Field(default=1, ge=1)
    """Processes that share the learner's parameters (FSDP2) and the samples of a step."""
    learner_cpus: float = Field(default=1.0, ge=0.0)
    """Of each of them."""
    learner_gpus: float = Field(default=0.0, ge=0.0)
    """Of each of them; 0 or 1 where there are several."""
    rollout_cpus: float = Field(default=1.0, ge=0.0)
    rollout_gpus: float = Field(default=0.0, ge=0.0)
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch in each learner and each rollout worker; unset: the cores the process may use."""
    max_restarts: int = Field(default=3, ge=0)
    """How often each of the actors (learner, feed, every rollout worker) is started again when its process is lost,
    before the run ends with an error."""

    @model_validator(mode="after")
    def _check_learners(self) -> Self:
        if self.learners > 1 and self.learner_gpus not in (0.0, 1.0):
            raise ValueError("several learners take one GPU each, or none (`learner_gpus`)")
        return self
