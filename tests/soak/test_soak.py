"""Mixed load with kills, cancels and garbage on two replicas of a real teacher, for minutes or for half an hour.

`TOKBRIDGE_SOAK_SECONDS` sets how long (1800 gives the figures of `docs/operators.md`), `TOKBRIDGE_SOAK_SEED` which
calls, `TOKBRIDGE_SOAK_REPORT` a file for the figures.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from support.process_gauges import read_process
from support.scrapes import sum_of_series
from support.soak_callers import SoakCaller
from support.soak_run import Soak
from support.soak_tally import Tally
from support.soak_watch import scrape
from support.tiny_models import STUDENT_TEXT, TINY_STUDENT, TINY_TEACHER, TinyRecipe, save_tiny_model
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.cancellations import CancelReason

SECONDS = float(os.environ.get("TOKBRIDGE_SOAK_SECONDS", "200"))
SEED = os.environ.get("TOKBRIDGE_SOAK_SEED", "1")
REPORT = os.environ.get("TOKBRIDGE_SOAK_REPORT")
HIT_EVERY_S = min(60.0, SECONDS / 5)

NEWCOMER = TinyRecipe("tiny-newcomer", STUDENT_TEXT[::-1], 350, "turn", "end_turn", seed=7)
SECOND_WAVE = 30
"""Calls of each caller, after the load."""
MAX_GROWTH_BYTES = 32 << 20
"""Of resident memory over the second half of the run, along the fitted line."""
MAX_MORE_FILES = 20
MAX_MORE_THREADS = 10
"""Between the quiet before and the quiet after."""


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 900)
async def test_mixed_load_with_kills_cancels_and_garbage_leaves_a_teacher_as_it_was(tmp_path):
    model = save_tiny_model(TINY_TEACHER, tmp_path / "teacher")
    profiles = [load_tokenizer(save_tiny_model(recipe, tmp_path / recipe.name)) for recipe in (TINY_STUDENT, NEWCOMER)]
    soak = Soak(tmp_path, model, seed=SEED, hit_every_s=HIT_EVERY_S)
    try:
        callers = await soak.prepare(profiles)
        before = look(soak)
        began_s = time.monotonic()
        await soak.load(*callers, profiles[0], SECONDS)
        report = {"seconds": round(time.monotonic() - began_s), "hits": dict(soak.hit.exits)}
        second_wave = await score_again(callers)
        held, after = await soak.held(), look(soak)
        report |= figures(soak, callers) | {"quiet": [vars(before), vars(after)], "held": held}
        for replica in (soak.hit, soak.spared):
            replica.hit(signal.SIGTERM)
    finally:
        soak.end()
    text = json.dumps(report, indent=1, ensure_ascii=False)
    print(text)
    if REPORT:
        Path(REPORT).write_text(text + "\n")
    assert not soak.tally.failures
    assert second_wave.outcomes == {"score": {"complete": len(callers) * SECOND_WAVE}}
    assert not held
    assert set(soak.hit.exits) <= {"SIGKILL: status -9", "SIGTERM: status 0"}
    assert soak.spared.exits == {"SIGTERM: status 0": 1}
    assert "Traceback" not in soak.hit.logs() + soak.spared.logs()
    growth = soak.watch.growth["spared"]
    assert growth.slope("resident_bytes") * growth.seconds / 2 < MAX_GROWTH_BYTES
    assert after.files - before.files < MAX_MORE_FILES
    assert after.threads - before.threads < MAX_MORE_THREADS


def look(soak: Soak):
    return read_process(soak.spared.pid, at_s=time.monotonic(), calls=soak.tally.calls)


async def score_again(callers: tuple[SoakCaller, ...]) -> Tally:
    """The load is over: every call is answered, or there is no sense in more of them; and the callers leave."""
    tally = Tally()
    for caller in callers:
        caller.tally = tally
        for number in range(SECOND_WAVE):
            if not tally.failures:
                await caller.score(Random(number))
        await caller.close()
    return tally


def figures(soak: Soak, callers: tuple[SoakCaller, ...]) -> dict[str, object]:
    metrics = scrape(soak.spared)
    return {
        **soak.tally.summary(),
        "callers_held_up_s": round(soak.watch.longest_pause_s, 2),
        "clients": [vars(caller.patient.statistics) for caller in callers],
        "cut_short_at_the_spared": {
            reason: sum_of_series(metrics, f'tokbridge_cancellations_total{{reason="{reason}"}}')
            for reason in CancelReason
        },
        "growth": {name: growth.summary() for name, growth in soak.watch.growth.items() if len(growth.readings) > 4},
    }
