"""What the samples of one prompt share is rendered once; nothing else is taken for it."""

from dataclasses import replace

import pytest

from tokbridge.errors import ChatTemplateError
from tokbridge.jinja_rendering import RenderJob
from tokbridge_teacher.prompt.rendered_texts import RenderedTexts

JOB = RenderJob("a template", [{"role": "user", "content": "hello"}], None, True, {"bos_token": "<s>"})
OTHERS = [
    replace(JOB, source="another"),
    replace(JOB, messages=[{"role": "user", "content": "hello "}]),
    replace(JOB, messages=[{"role": "user", "content": "hello"}] * 2),
    replace(JOB, tools=[]),
    replace(JOB, add_generation_prompt=False),
    replace(JOB, variables={"bos_token": "<s>", "enable_thinking": False}),
]


class Renderer:
    """Numbers its texts, or refuses."""

    def __init__(self) -> None:
        self.jobs: list[RenderJob] = []
        self.refuses = False

    def __call__(self, job: RenderJob) -> str:
        self.jobs.append(job)
        if self.refuses:
            raise ChatTemplateError("no")
        return f"text {len(self.jobs)}"


def test_equal_jobs_are_rendered_once_and_different_ones_are_not_mixed_up():
    renderer = Renderer()
    texts = RenderedTexts(renderer)
    first = [texts(job) for job in (JOB, *OTHERS)]
    assert len(set(first)) == len(OTHERS) + 1
    assert [texts(replace(job)) for job in (JOB, *OTHERS)] == first
    assert renderer.jobs == [JOB, *OTHERS]


def test_a_refusal_is_asked_for_again():
    renderer = Renderer()
    texts = RenderedTexts(renderer)
    renderer.refuses = True
    with pytest.raises(ChatTemplateError):
        texts(JOB)
    renderer.refuses = False
    assert texts(JOB) == texts(JOB) == "text 2"


def test_what_was_not_used_for_longest_makes_room():
    renderer = Renderer()
    texts = RenderedTexts(renderer, max_characters=3 * 71)
    for job in OTHERS[:3]:
        texts(job)
    texts(OTHERS[0])
    texts(OTHERS[3])
    assert texts(OTHERS[0]) == "text 1"
    assert texts(OTHERS[1]) == "text 5"


def test_a_template_that_asks_for_the_time_is_always_rendered():
    renderer = Renderer()
    texts = RenderedTexts(renderer)
    job = replace(JOB, source="{{ strftime_now('%d %b %Y') }}")
    assert [texts(job), texts(job)] == ["text 1", "text 2"]
