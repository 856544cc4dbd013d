"""A run loses its processes one after the other, and learns as if it had not."""

import re

import pytest
from rich.console import Console

from support.ray_processes import kill_actor
from support.runs import losses, read_lines
from tokbridge.errors import ActorLostError
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class KillingConsole(Console):
    """Kills an actor when the line of a step is printed, the next step's samples being on their way."""

    def __init__(self, kills):
        super().__init__(record=True, width=200)
        self.kills = dict(kills)

    def print(self, *objects, **options):
        super().print(*objects, **options)
        step = re.match(r"step (\d+) ", str(objects[0]))
        victim = self.kills.pop(int(step[1]), None) if step else None
        if victim:
            kill_actor(victim)


def run_with_kills(reference, folder, kills, **changes):
    """Of each class named in `kills` one actor is killed after the given step; returns the lines and what was said."""
    console = KillingConsole(kills)
    config = reference.model_copy(update={"output_dir": folder, **changes})
    run_training(config, console)
    assert not console.kills
    return config, read_lines(folder / "metrics.jsonl"), console.export_text()


def test_worker_feed_and_learner_are_lost_and_nothing_else(undisturbed, tmp_path):
    reference, _ = undisturbed
    kills = {3: "_WorkerActor", 6: "Feed", 8: "_WorkerActor", 14: "_LearnerActor"}
    config, lines, said = run_with_kills(reference, tmp_path / "run", kills)
    assert [line["step"] for line in lines] == list(range(20))
    assert losses(config.output_dir) == pytest.approx(losses(reference.output_dir), abs=1e-5)
    assert all(line["samples/scored"] == 4 and line["samples/dropped"] == 0 for line in lines)
    restarts = [tuple(line[f"restarts/{kind}"] for kind in ("learner", "feed", "rollout")) for line in lines]
    assert restarts[2] == (0, 0, 0)
    assert restarts[19] == (1, 1, 2)
    assert restarts == sorted(restarts)
    assert "rollout worker 0 was lost" in said
    assert "the feed was lost" in said
    # The checkpoint after 10 steps may still have been on its way to the disk.
    assert re.search(r"the learner was lost; training goes on after (5|10) steps", said)
    evaluations = read_lines(config.output_dir / "samples.jsonl")
    assert [line["step"] for line in evaluations] == sorted(line["step"] for line in evaluations)


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("victim", ["_WorkerActor", "Feed", "_LearnerActor"])
def test_samples_are_neither_lost_nor_counted_twice_when_rollouts_run_ahead(undisturbed, tmp_path, victim, lag):
    reference, _ = undisturbed
    two_workers = reference.rollout.model_copy(update={"workers": 2})
    _, lines, _ = run_with_kills(
        reference, tmp_path / "run", {4: victim, 9: victim}, max_policy_lag=lag, rollout=two_workers
    )
    assert [line["step"] for line in lines] == list(range(20))
    assert all(line["samples/scored"] == 4 and line["samples/dropped"] == 0 for line in lines)
    assert all(0 <= line["policy_lag/max"] <= lag for line in lines)
    assert sum(lines[-1][f"restarts/{kind}"] for kind in ("learner", "feed", "rollout")) == 2


@pytest.mark.nightly
def test_a_learner_of_two_ranks_that_loses_one_goes_back_as_a_whole(undisturbed, tmp_path):
    reference, _ = undisturbed
    ray = reference.ray.model_copy(update={"learners": 2})
    _, lines, said = run_with_kills(reference, tmp_path / "run", {8: "RayTrainWorker"}, ray=ray)
    assert [line["step"] for line in lines] == list(range(20))
    assert lines[-1]["restarts/learner"] == 1
    assert re.search(r"the learner was lost; training goes on after (0|5) steps", said)


@pytest.mark.nightly
def test_a_process_that_is_lost_too_often_ends_the_run_with_a_typed_error(undisturbed, tmp_path):
    reference, _ = undisturbed
    ray = reference.ray.model_copy(update={"max_restarts": 0})
    with pytest.raises(ActorLostError, match=r"max_restarts is 0") as caught:
        run_with_kills(reference, tmp_path / "run", {2: "_WorkerActor"}, ray=ray)
    assert caught.value.details["actor"] == "rollout 0"
