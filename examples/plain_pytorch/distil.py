"""Distil from a tokbridge teacher in a plain PyTorch loop: no trainer, no Ray.

    python examples/plain_pytorch/distil.py --teacher host:50051 --student Qwen/Qwen3.5-2B --prompts prompts.jsonl \
        --output runs/plain [--steps 200] [--prompts-per-step 8]

Prompts are JSONL with a field `messages`. One process, one device; responses are written one by one, scored together.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.client import BlockingTeacherClient, TeacherClient
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge_trainer.head import decoder_of, find_head_form, lm_head
from tokbridge_trainer.loss import bpm_loss
from tokbridge_trainer.target_tensors import TargetTensors

Message = dict[str, Any]


class Distiller:
    """A student, its optimizer and its teacher."""

    def __init__(
        self,
        model: PreTrainedModel,
        student: StudentTokenizer,
        teacher: BlockingTeacherClient,
        optimizer: torch.optim.Optimizer,
        max_new_tokens: int,
    ) -> None:
        self.model, self.student, self.teacher, self.optimizer = model, student, teacher, optimizer
        self.form = find_head_form(model)
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": max_new_tokens}
        stops = {"eos_token_id": student.stop_ids, "pad_token_id": student.stop_ids[0]}
        self.generation = GenerationConfig(**sampling, **stops, suppress_tokens=student.forbidden_ids)

    def step(self, prompts: list[list[Message]], beta: float = 0.5) -> float:
        """Answer the prompts, have the answers scored, learn from them; returns the loss before the step."""
        prompt_ids = [torch.from_numpy(self.student.prompt_ids(messages)).long() for messages in prompts]
        sequences = [self.write(ids.to(self.model.device)) for ids in prompt_ids]
        requests = [
            self.student.request(messages, sequence[len(ids) :].tolist())
            for messages, ids, sequence in zip(prompts, prompt_ids, sequences, strict=True)
        ]
        results = self.teacher.score_all(requests)
        normalizer = sum(request.num_rows for request in requests)
        total = 0.0
        for ids, sequence, result in zip(prompt_ids, sequences, results, strict=True):
            targets = TargetTensors.from_rows([result.rows], device=self.model.device)
            loss = self.loss(sequence, targets, len(ids), normalizer, beta)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    @torch.no_grad()
    def write(self, prompt_ids_P: torch.Tensor) -> torch.Tensor:
        """[L] the prompt and the student's answer to it."""
        self.model.eval()
        sequence_1L = self.model.generate(prompt_ids_P[None], generation_config=self.generation)
        self.model.train()
        return sequence_1L[0]

    def loss(
        self, sequence_L: torch.Tensor, targets: TargetTensors, prompt_length: int, normalizer: float, beta: float
    ) -> torch.Tensor:
        """One response's part of the loss; the logits of the whole response never exist."""
        hidden_LH = decoder_of(self.model)(input_ids=sequence_L[None], use_cache=False).last_hidden_state[0]
        head, rows = lm_head(self.model), targets.predictor_index([prompt_length], len(sequence_L))
        return bpm_loss(
            hidden_LH[rows],
            head.weight,
            targets,
            normalizer=normalizer,
            beta=beta,
            head_bias=head.bias,
            logit_scale=self.form.scale,
            softcap=self.form.softcap,
        ).loss


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--teacher", "--student", "--prompts", "--output"):
        parser.add_argument(name, required=True)
    for name, default in (("--steps", 200), ("--prompts-per-step", 8), ("--max-new-tokens", 1024)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    arguments = parser.parse_args()
    lines = Path(arguments.prompts).read_text(encoding="utf-8").splitlines()
    prompts = itertools.cycle([json.loads(line)["messages"] for line in lines])
    student = StudentTokenizer.load(arguments.student)
    model = AutoModelForCausalLM.from_pretrained(arguments.student, dtype=torch.float32)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    with BlockingTeacherClient(TeacherClient(arguments.teacher)) as teacher:
        teacher.connect(student.registration)
        distiller = Distiller(model, student, teacher, optimizer, arguments.max_new_tokens)
        for step in range(arguments.steps):
            loss = distiller.step(list(itertools.islice(prompts, arguments.prompts_per_step)))
            print(f"step {step} loss {loss:.4f}", flush=True)
    model.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
