"""Where samples come from: keys are unique, shares are whole."""

from support.training import make_config, make_prompt
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.samples import EVALUATION_STEP
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.sources import RolloutSource, share_out


def work_of(config, step, num_prompts=3):
    prompts = PromptSet([make_prompt([1], index) for index in range(num_prompts)], 0, config.seed, shuffle=True)
    return RolloutSource(config, prompts).work(StepPlan(step, "on_policy", step, 0.5, 1e-3))


def test_every_sample_of_a_step_has_its_own_key_even_where_epochs_meet():
    work = work_of(make_config(prompts_per_step=5, samples_per_prompt=2), 1)
    assert work.num_samples == len(work.tasks) == len({task.key for task in work.tasks}) == 10
    assert {task.key.step for task in work.tasks} == {1}
    assert all(task.key.prompt_index == task.prompt.index for task in work.tasks)


def test_the_same_step_always_has_the_same_tasks():
    config = make_config(prompts_per_step=2)
    once, again = work_of(config, 4), work_of(config, 4)
    assert [task.key for task in once.tasks] == [task.key for task in again.tasks]
    assert all(task.key.step < EVALUATION_STEP for task in once.tasks)


def test_shares_are_even_and_idle_workers_get_nothing():
    assert share_out(range(5), 4) == [range(2), range(2, 4), range(4, 5), range(5, 5)]
    assert [item for share in share_out(range(7), 3) for item in share] == list(range(7))
