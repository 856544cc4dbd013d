"""A TRL trainer that learns from a tokbridge teacher: TRL's loop, optimizer and checkpoints, our targets and loss.

Four public seams of `SFTTrainer` are used: the collator, `get_batch_samples` (write and score the responses of a whole
optimizer step, so that one normalizer holds for all of its micro-batches), `compute_loss`, and `log`.

Axes: B responses of a micro-batch, L tokens of prompt and response with padding, R rows with a target, H hidden size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from trl import SFTConfig, SFTTrainer
from trl.models import unwrap_model_for_generation

from tokbridge.client import BlockingTeacherClient, ScoreRequest
from tokbridge.modes import Routing, Spanning
from tokbridge.results import ScoreResult
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge_trainer.head import find_head_form, lm_head
from tokbridge_trainer.loss import bpm_loss
from tokbridge_trainer.target_tensors import TargetTensors, WhitespaceRule


@dataclass
class DistillationConfig(SFTConfig):
    """What distillation adds to TRL's arguments."""

    beta: float = 0.5
    """0 forward KL, 1 skewed reverse KL, between them the generalized Jensen–Shannon divergence."""
    max_new_tokens: int = 1024
    temperature: float = 1.0
    """Of the student's sampling; it never enters the loss."""
    routing: str = Routing.GREEDY
    spanning: str = Spanning.REALIZED
    whitespace: str = WhitespaceRule.DROP


class DistillationTrainer(SFTTrainer):
    """On-policy distillation: in each step the student answers prompts and learns what its teacher says of the answers.

    The data set has a column `messages`, conversations that end where the student is to answer.
    """

    def __init__(
        self,
        model: Any,
        args: DistillationConfig,
        *,
        teacher: BlockingTeacherClient,
        student: StudentTokenizer,
        **others: Any,
    ) -> None:
        """`teacher` is connected as `student`, the tokenizer of `model`; `others` go to `SFTTrainer`."""
        args.remove_unused_columns = False
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        super().__init__(model, args, data_collator=_conversations, **others)
        self.distillation = args
        self.loss_is_scaled_for_ga = True  # by the normalizer of the whole step
        self._teacher = teacher
        self._student = student
        self._form = find_head_form(self.accelerator.unwrap_model(self.model))
        self._generation = GenerationConfig(
            do_sample=True,
            temperature=args.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=args.max_new_tokens,
            eos_token_id=student.stop_ids,
            pad_token_id=student.stop_ids[0],
            suppress_tokens=student.forbidden_ids,
        )
        self._sums: Counter[str] = Counter()

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], torch.Tensor]:
        """Responses and targets for the prompts of a step, and Z: its response tokens over all processes."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        scored = [self._write_and_score(batch["messages"]) for batch in batches]
        count = torch.tensor(sum(batch["response_tokens"] for batch in scored), device=device)
        return scored, self.accelerator.gather(count).sum()

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The divergence from the teacher's rows over Z; in an evaluation over the tokens of its own batch."""
        if "targets" not in inputs:
            inputs = self._write_and_score(inputs["messages"])
        # One position of logits only: the loss makes its own, by chunks.
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            output_hidden_states=True,
            logits_to_keep=1,
            use_cache=False,
        )
        targets, head = inputs["targets"], lm_head(self.accelerator.unwrap_model(model))
        hidden_BLH = output.hidden_states[-1]
        normalizer = inputs["response_tokens"] if num_items_in_batch is None else float(num_items_in_batch)
        loss = bpm_loss(
            hidden_BLH.flatten(0, 1)[targets.predictor_index(inputs["first_columns"], hidden_BLH.shape[1])],
            head.weight,
            targets,
            normalizer=normalizer,
            beta=self.distillation.beta,
            head_bias=head.bias,
            logit_scale=self._form.scale,
            softcap=self._form.softcap,
        ).loss
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over the processes
        return (loss, output) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's logs, and what became of the rows since the last ones."""
        super().log(logs | {f"distillation/{name}": float(total) for name, total in self._sums.items()}, start_time)
        self._sums.clear()

    def _write_and_score(self, conversations: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """One response to each conversation, as inputs of the model, and the teacher's rows."""
        prompt_ids_BP, prompt_mask_BP = self._prompts(conversations)
        ids_BL = self._write(prompt_ids_BP, prompt_mask_BP)
        first_column = prompt_ids_BP.shape[1]
        responses = ids_BL[:, first_column:].tolist()
        requests = [self._request(*pair) for pair in zip(conversations, responses, strict=True)]
        results = self._teacher.score_all(requests)
        targets = TargetTensors.from_rows(
            [result.rows for result in results], whitespace=self.distillation.whitespace, device=ids_BL.device
        )
        self._count(results, targets)
        lengths_B1 = torch.tensor([[request.num_rows] for request in requests], device=ids_BL.device)
        response_mask_BT = torch.arange(ids_BL.shape[1] - first_column, device=ids_BL.device) < lengths_B1
        return {
            "input_ids": ids_BL,
            "attention_mask": torch.cat([prompt_mask_BP, response_mask_BT.long()], 1),
            "first_columns": [first_column] * len(requests),
            "targets": targets,
            "response_tokens": sum(request.num_rows for request in requests),
        }

    def _prompts(self, conversations: list[list[dict[str, Any]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, P] each: ids padded on the left, and the mask of what is no padding."""
        prompts = [torch.from_numpy(self._student.prompt_ids(messages)).long() for messages in conversations]
        padded, masks = (
            torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side="left")
            for tensors in (prompts, [torch.ones_like(prompt) for prompt in prompts])
        )
        return padded.to(self.args.device), masks.to(self.args.device)

    @torch.no_grad()
    def _write(self, prompt_ids_BP: torch.Tensor, mask_BP: torch.Tensor) -> torch.Tensor:
        """[B, L]: prompts and what the student answers, padded with a stop token."""
        was_training = self.model.training
        self.model.eval()
        with unwrap_model_for_generation(self.model_wrapped, self.accelerator) as model:
            ids_BL = model.generate(prompt_ids_BP, attention_mask=mask_BP, generation_config=self._generation)
        self.model.train(was_training)
        return ids_BL

    def _request(self, messages: list[dict[str, Any]], response: list[int]) -> ScoreRequest:
        args = self.distillation
        modes = {"routing": Routing(args.routing), "spanning": Spanning(args.spanning)}
        return self._student.request(messages, response, **modes)

    def _count(self, results: list[ScoreResult], targets: TargetTensors) -> None:
        self._sums["responses"] += len(results)
        self._sums["stopped"] += int(targets.is_stop.sum())
        self._sums["rows_in_loss"] += int((targets.weights > 0).sum())
        self._sums.update({f"rows_left_out/{reason}": count for reason, count in targets.left_out.items()})


def _conversations(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """The collator: conversations as they are; tensors are made once the student has answered."""
    return {"messages": [example["messages"] for example in examples]}
