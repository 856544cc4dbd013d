"""Where samples come from: keys are unique, shares are whole."""

from dataclasses import dataclass, field

from support.training import make_config, make_prompt
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.samples import EVALUATION_STEP
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.sources import RolloutSource, share_out


@dataclass
class Remote:
    """A method of an actor, called in place."""

    calls: list = field(default_factory=list)

    def remote(self, tasks):
        self.calls.append(tasks)
        return len(self.calls)


@dataclass
class Worker:
    """A rollout worker that only takes notes."""

    write: Remote = field(default_factory=Remote)


def start(config, step, workers, num_prompts=3):
    prompts = PromptSet([make_prompt([1], index) for index in range(num_prompts)], 0, config.seed, shuffle=True)
    started = RolloutSource(config, prompts, workers).start(StepPlan(step, "on_policy", step, 0.5, 1e-3))
    return started, [task for worker in workers for call in worker.write.calls for task in call]


def test_every_sample_of_a_step_has_its_own_key_even_where_epochs_meet():
    config = make_config(prompts_per_step=5, samples_per_prompt=2)
    started, tasks = start(config, 1, [Worker(), Worker()])
    assert started.count == len(tasks) == len({task.key for task in tasks}) == 10
    assert {task.key.step for task in tasks} == {1}
    assert all(task.key.prompt_index == task.prompt.index for task in tasks)


def test_the_same_step_always_has_the_same_tasks():
    config = make_config(prompts_per_step=2)
    _, once = start(config, 4, [Worker()])
    _, again = start(config, 4, [Worker(), Worker(), Worker()])
    assert [task.key for task in once] == [task.key for task in again]
    assert all(task.key.step < EVALUATION_STEP for task in once)


def test_shares_are_even_and_idle_workers_get_nothing():
    workers = [Worker() for _ in range(4)]
    assert len(share_out(list(range(5)), workers)) == 3
    assert [worker.write.calls for worker in workers] == [[[0, 1]], [[2, 3]], [[4]], []]
