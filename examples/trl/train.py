"""Distil from a tokbridge teacher with TRL.

    accelerate launch examples/trl/train.py --teacher host:50051 --student Qwen/Qwen3.5-2B --prompts prompts.jsonl \
        --output runs/trl [--steps 200] [--beta 0.5]

Prompts are JSONL with a column `messages`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from datasets import load_dataset

sys.path.insert(0, str(Path(__file__).parent))

from distillation import DistillationConfig, DistillationTrainer

from tokbridge.client import BlockingTeacherClient, TeacherClient
from tokbridge.student_tokenizer import StudentTokenizer


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="host:port, as often as it has replicas", action="append")
    parser.add_argument("--student", required=True, help="folder or hub id")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    config = DistillationConfig(
        output_dir=arguments.output,
        max_steps=arguments.steps,
        beta=arguments.beta,
        max_new_tokens=arguments.max_new_tokens,
        learning_rate=arguments.learning_rate,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        logging_steps=1,
        report_to="none",
        bf16=on_gpu,
        use_cpu=not on_gpu,
    )
    student = StudentTokenizer.load(arguments.student)
    prompts = load_dataset("json", data_files=arguments.prompts, split="train")
    with BlockingTeacherClient(TeacherClient(arguments.teacher)) as teacher:
        teacher.connect(student.registration)
        trainer = DistillationTrainer(
            arguments.student, config, teacher=teacher, student=student, train_dataset=prompts
        )
        trainer.train()
        trainer.save_model()


if __name__ == "__main__":
    main()
