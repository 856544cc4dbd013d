"""What a run says before it starts: nothing is left out, or left idle, without a word."""

from io import StringIO

import pytest
from rich.console import Console

from support.training import make_config, make_prompt
from tokbridge_trainer import actors
from tokbridge_trainer.actors import idle_gpus
from tokbridge_trainer.progress import ProgressDisplay
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.run_data import RunData
from tokbridge_trainer.train import StartingPoint, _announce
from tokbridge_trainer.written_responses import WrittenSet


def test_what_is_left_out_of_the_evaluation_is_told_as_well(student_text):
    def prompts(num_overlong):
        return PromptSet([make_prompt([1])], num_overlong, 0, True)

    data = RunData(
        text=student_text,
        prompts=prompts(2),
        evaluation_prompts=prompts(3),
        evaluation_responses=WrittenSet([], {"empty": 4}, 0),
        warm_start=WrittenSet([], {"unspellable": 5}, 0),
        end_step=1,
        on_policy_steps=1,
        fingerprint="",
    )
    text = StringIO()
    show = ProgressDisplay(Console(file=text, width=200), None, None)
    _announce(make_config(), data, StartingPoint(0, None), show)
    assert text.getvalue().splitlines()[1:] == [
        "left out: 2 prompts of more than 200 tokens",
        "left out of the evaluation: 3 prompts of more than 200 tokens",
        "left out of the warm start: 5 responses (unspellable)",
        "left out of the evaluation: 4 responses (empty)",
    ]


@pytest.mark.parametrize(
    ("resources", "taken", "idle"),
    [({"CPU": 2.0}, {}, 0.0), ({"GPU": 8.0}, {}, 8.0), ({"GPU": 8.0}, {"rollout_gpus": 1}, 0.0)],
)
def test_gpus_that_no_actor_asks_for_are_noticed(monkeypatch, resources, taken, idle):
    monkeypatch.setattr(actors.ray, "cluster_resources", lambda: resources)
    assert idle_gpus(make_config(ray=taken)) == idle
