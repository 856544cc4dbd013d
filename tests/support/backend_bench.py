"""The transformers backend on a tiny model that is its own student, and a recorder of what it says of each job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokbridge.errors import TokbridgeError
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.backends.huggingface import BackendLimits, HuggingFaceBackend
from tokbridge_teacher.backends.model_loading import load_model
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

OPTIONS = ScoringOptions(routing="greedy", spanning="realized", top_k=500, mass=1.0)


class Recorder:
    """Collects what a backend says about one job."""

    def __init__(self, prompt_ids, plan, tables, device_tables, cancel_after: int | None = None) -> None:
        self.chunks: list[Any] = []
        self.errors: list[TokbridgeError] = []
        self.shared: int | None = None
        self.cancel_after = cancel_after
        """Chunks after which nobody waits any more."""
        self.assembler = RowAssembler(plan, tables)
        self.job = ScoreJob(
            prompt_ids=prompt_ids,
            plan=plan,
            tables=device_tables,
            cancelled=lambda: self.cancel_after is not None and len(self.chunks) >= self.cancel_after,
            emit=self.chunks.append,
            finish=self._finish,
            fail=self.errors.append,
        )

    def _finish(self, shared_prompt_tokens: int) -> None:
        assert self.shared is None
        self.shared = shared_prompt_tokens

    def emitted_log_probs(self) -> np.ndarray:
        parts = [self.assembler.add(chunk) for chunk in self.chunks]
        self.assembler.finish()
        return np.concatenate([part.emitted_log_prob for part in parts])


class Bench:
    """A tiny model that is its own student."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.folder = folder
        self.model = load_model(str(folder), dtype=dtype, device="cpu")
        self.profile = load_tokenizer(folder)
        self.tokenizer = ContentTokenizer(self.profile.files.tokenizer_json, self.profile.vocabulary)
        vocabulary = self.profile.vocabulary
        self.tables = compile_pair(vocabulary, vocabulary, "greedy", student_encoder=None, cache_folder=None)
        self.device_tables = self.tables.on_device("cpu")

    def backend(self, **limits: int) -> HuggingFaceBackend:
        return HuggingFaceBackend(self.model, name="tiny", context_length=4096, limits=BackendLimits(**limits))

    def recorder(self, prompt: bytes, text: bytes, cancel_after: int | None = None) -> Recorder:
        segmentation = self.tokenizer.segment(text)
        stop_id = self.profile.turn_end_id
        plan = build_plan(
            self.tables,
            segmentation,
            segmentation.ids,
            text,
            teacher_stop_ids=[stop_id],
            stop_id=stop_id,
            turn_end_id=stop_id,
            given_bytes=0,
            options=OPTIONS,
        )
        return Recorder(self.tokenizer.segment(prompt).ids, plan, self.tables, self.device_tables, cancel_after)

    def reference(self, recorder: Recorder) -> np.ndarray:
        """Log-probs of the response's tokens and stop from one plain forward pass in float32."""
        wanted = np.append(recorder.job.plan.teacher_ids, self.profile.turn_end_id)
        ids = np.concatenate([recorder.job.prompt_ids, wanted[:-1]]).astype(np.int64)
        with torch.no_grad():
            logits = self.model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].float()
        log_probs = torch.log_softmax(logits[len(recorder.job.prompt_ids) - 1 :], -1)
        return log_probs[torch.arange(len(wanted)), torch.from_numpy(wanted)].numpy()
