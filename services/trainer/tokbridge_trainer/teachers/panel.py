"""The teachers of one list, connected: asks those that a sample is meant for, and settles what failed.

A list never changes; another one makes another panel (`switch.py`), which may share members with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tokbridge.errors import DeadlineExceededError, TokbridgeError, UnroutedPromptError
from tokbridge.results import ScoreResult
from tokbridge_trainer.config_teachers import TeachersConfig
from tokbridge_trainer.samples import Sample, ScoredSample
from tokbridge_trainer.teachers.assignment import assign
from tokbridge_trainer.teachers.member import Member
from tokbridge_trainer.teachers.mixing import combined
from tokbridge_trainer.teachers.tally import StepTally

Answer = TypeVar("Answer")

ASK_AGAIN_AFTER_S = 5.0
"""Pause of the fallback `wait` between two questions, each of which has had its `timeout_s`."""


@dataclass(frozen=True)
class LeftOut:
    """A sample that is not learned from, and why."""

    reason: TokbridgeError


@dataclass(frozen=True)
class Resend:
    """Another list counts by now, and not all had answered: the present teachers have to be asked."""


@dataclass(frozen=True)
class Panel:
    """Connected teachers by name."""

    config: TeachersConfig
    members: Mapping[str, Member]
    announce: Callable[[str], None]
    """Told, once a step, of a teacher that is waited for."""
    _superseded: asyncio.Event = field(default_factory=asyncio.Event)

    def supersede(self) -> None:
        """Another list counts from now on: its rules and fallbacks decide what becomes of whatever fails here."""
        self._superseded.set()

    async def score(self, sample: Sample, tally: StepTally) -> ScoredSample | LeftOut | Resend:
        """Ask the sample's teachers at once and mix what they say; what happens is counted.

        Raises:
            UnroutedPromptError: it goes to none, and `unrouted` is `error`.
            TokbridgeError: one failed whose fallback is to end the run.
        """
        try:
            weights = assign(self.config, sample.prompt)
        except UnroutedPromptError as error:
            if self.config.unrouted == "error":
                raise
            return LeftOut(error)
        answers, failures = await _first_failure_or_all({name: self._ask(name, sample, tally) for name in weights})
        results = {name: answer for name, answer in answers.items() if isinstance(answer, ScoreResult)}
        excused = {name: answer for name, answer in answers.items() if isinstance(answer, TokbridgeError)}
        unscored = self._settle(failures, excused, bool(results), tally)
        if unscored is not None:
            return unscored
        return await self._combined(sample, results, weights, tally)

    async def _ask(self, name: str, sample: Sample, tally: StepTally) -> ScoreResult | TokbridgeError:
        """One teacher's answer, or why it has none where the others do without; under `wait` it is asked for as long as
        it cannot be reached and its list counts.

        Raises:
            TokbridgeError: it failed, and whatever the others say, there will be no target.
        """
        member, counts, fallback = self.members[name], tally.of(name), self.config.members[name].on_failure
        while True:
            try:
                return await member.score(sample, counts)
            except TokbridgeError as error:
                if self._superseded.is_set():
                    raise
                counts.failures[str(error.code)] += 1
                if fallback == "others":
                    return error
                if fallback != "wait" or not _is_out_of_reach(error):
                    raise
                if not counts.is_waited_for:
                    counts.is_waited_for = True
                    self.announce(f"teacher {name} does not answer and is asked again: {error.message}")
                if await self._is_superseded_within(ASK_AGAIN_AFTER_S):
                    raise
                counts.asked_again += 1

    async def _is_superseded_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._superseded.wait(), seconds)
        return self._superseded.is_set()

    def _settle(
        self,
        failures: Mapping[str, BaseException],
        excused: Mapping[str, TokbridgeError],
        has_results: bool,
        tally: StepTally,
    ) -> LeftOut | Resend | None:
        """What becomes of a sample that some teachers failed on; None: it goes on with the others' rows.

        Raises:
            BaseException: a failure that ends the run.
        """
        if failures and self._superseded.is_set():
            for name in failures:
                tally.of(name).resent += 1
            return Resend()
        to_blame: dict[str, TokbridgeError] = {}
        for name, failure in failures.items():
            if not isinstance(failure, TokbridgeError) or self.config.members[name].on_failure != "skip":
                raise failure
            to_blame[name] = failure
        if not (to_blame or has_results):
            to_blame |= excused
        for name in to_blame:
            tally.of(name).skipped += 1
        if to_blame:
            return LeftOut(next(iter(to_blame.values())))
        for name in excused:
            tally.of(name).left_to_others += 1
        return None

    async def _combined(
        self, sample: Sample, results: Mapping[str, ScoreResult], weights: Mapping[str, float], tally: StepTally
    ) -> ScoredSample:
        if len(results) == 1:
            return combined(sample, results, weights, self.config)[0]
        # A long response takes tens of milliseconds: the event loop has other streams to read.
        scored, mixture = await asyncio.to_thread(combined, sample, results, weights, self.config)
        if mixture is not None:
            tally.mixed_rows += int(mixture.rows.has_target().sum())
            tally.partial_rows += mixture.num_partial
        return scored


async def _first_failure_or_all(
    questions: Mapping[str, Coroutine[None, None, Answer]],
) -> tuple[dict[str, Answer], dict[str, BaseException]]:
    """Answers and failures by name. The first failure ends what is not answered yet: a teacher that is waited for may
    never come.
    """
    tasks = {name: asyncio.create_task(question) for name, question in questions.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    ended = {name: (task, task.exception()) for name, task in tasks.items() if not task.cancelled()}
    failures = {name: failure for name, (_, failure) in ended.items() if failure is not None}
    return {name: task.result() for name, (task, _) in ended.items() if name not in failures}, failures


def _is_out_of_reach(error: TokbridgeError) -> bool:
    """Whether the same question may be answered later."""
    return error.retryable or isinstance(error, DeadlineExceededError)
