"""The teachers of one list, connected: asks those that a sample is meant for, and settles what failed.

A list never changes; another one makes another panel (`switch.py`), which may share members with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tokbridge.errors import DeadlineExceededError, TokbridgeError, UnroutedPromptError
from tokbridge.results import ScoreResult
from tokbridge_trainer.config_teachers import TeachersConfig
from tokbridge_trainer.samples import Sample, ScoredSample
from tokbridge_trainer.teachers.assignment import assign
from tokbridge_trainer.teachers.member import Member
from tokbridge_trainer.teachers.mixing import combined
from tokbridge_trainer.teachers.tally import StepTally

ASK_AGAIN_AFTER_S = 5.0
"""Pause of the fallback `wait` between two questions, each of which has had its `timeout_s`."""


@dataclass(frozen=True)
class LeftOut:
    """A sample that is not learned from, and why."""

    reason: TokbridgeError


@dataclass(frozen=True)
class Resend:
    """A teacher left the list before it had answered: the present one has to be asked."""


@dataclass(frozen=True)
class Panel:
    """Connected teachers by name."""

    config: TeachersConfig
    members: Mapping[str, Member]

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
        asked = (self._ask(name, sample, tally) for name in weights)
        outcomes = dict(zip(weights, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        results = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, ScoreResult)}
        failures = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, BaseException)}
        unscored = self._settle(failures, bool(results), tally)
        if unscored is not None:
            return unscored
        return await self._combined(sample, results, weights, tally)

    async def _ask(self, name: str, sample: Sample, tally: StepTally) -> ScoreResult:
        """One teacher's answer; under `wait` it is asked for as long as it cannot be reached and is listed."""
        member, counts = self.members[name], tally.of(name)
        while True:
            try:
                return await member.score(sample, counts)
            except TokbridgeError as error:
                if member.is_retired:
                    raise
                counts.failures[str(error.code)] += 1
                if self.config.members[name].on_failure != "wait" or not _is_out_of_reach(error):
                    raise
                counts.asked_again += 1
            await member.pause(ASK_AGAIN_AFTER_S)

    def _settle(
        self, failures: Mapping[str, BaseException], has_results: bool, tally: StepTally
    ) -> LeftOut | Resend | None:
        """What becomes of a sample that some teachers failed on; None: it goes on with the others' rows.

        Raises:
            BaseException: a failure that ends the run.
        """
        retired = [name for name in failures if self.members[name].is_retired]
        for name in retired:
            tally.of(name).resent += 1
        if retired:
            return Resend()
        excusable: dict[str, TokbridgeError] = {}
        to_blame: dict[str, TokbridgeError] = {}
        for name, failure in failures.items():
            fallback = self.config.members[name].on_failure
            if not isinstance(failure, TokbridgeError) or fallback in ("raise", "wait"):
                raise failure
            (excusable if fallback == "others" else to_blame)[name] = failure
        if not has_results:
            to_blame |= excusable
        for name in to_blame:
            tally.of(name).skipped += 1
        if to_blame:
            return LeftOut(next(iter(to_blame.values())))
        for name in excusable:
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


def _is_out_of_reach(error: TokbridgeError) -> bool:
    """Whether the same question may be answered later."""
    return error.retryable or isinstance(error, DeadlineExceededError)
