"""How much of a step the learner waits, and how far a step is from its slowest stage, by `max_policy_lag`.

Real Ray actors, the real loop, feed and staleness rule; rollouts, teacher and learner sleep for given times, so the
figures say what the loop makes of them and not how fast the machine is. The first steps, which fill the pipeline, are
not counted.

    python benchmarks/pipelining.py
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.slow_stages import Span, Stages, run_stages
from tokbridge_trainer.actors import start_ray

CASES = {
    "slow teacher": Stages(rollout_s=0.2, teacher_s=1.0, learner_s=0.2),
    "slow rollout": Stages(rollout_s=1.0, teacher_s=0.2, learner_s=0.2),
    "slow learner": Stages(rollout_s=0.2, teacher_s=0.2, learner_s=1.0),
    "slow teacher and rollout": Stages(rollout_s=1.0, teacher_s=1.0, learner_s=0.2),
    "all alike": Stages(rollout_s=1.0, teacher_s=1.0, learner_s=1.0),
}
LAGS = (0, 1, 2)
FILLING, COUNTED = 3, 8
BOUND = 1.15
"""Of the step over its slowest stage, where rollouts may be a step behind or more."""


def main() -> None:
    """Print one line for each case and lag; exit status 1 when a step with lag takes too long."""
    start_ray(num_cpus=2)
    row = "{:46}{:>5}{:>9}{:>22}{:>16}"
    print(row.format("rollout / teacher / learner", "lag", "step", "step ÷ slowest stage", "learner waits"))
    too_slow = False
    for (name, stages), lag in product(CASES.items(), LAGS):
        step_s, waiting = measure(run_stages(stages, lag, FILLING + COUNTED))
        ratio = step_s / stages.slowest_s
        too_slow |= lag > 0 and ratio > BOUND
        times = f"{name}: {stages.rollout_s:g} / {stages.teacher_s:g} / {stages.learner_s:g} s"
        print(row.format(times, lag, f"{step_s:.2f} s", f"{ratio:.2f}", f"{waiting:.0%}"), flush=True)
    ray.shutdown()
    sys.exit(int(too_slow))


def measure(spans: list[Span]) -> tuple[float, float]:
    """Mean seconds from one step's end to the next's, and the share of them in which the learner did nothing."""
    learner = [span for span in spans if span.stage == "learner"]
    counted = learner[FILLING:]
    total_s = counted[-1].end - learner[FILLING - 1].end
    return total_s / len(counted), 1 - sum(span.end - span.start for span in counted) / total_s


if __name__ == "__main__":
    main()
