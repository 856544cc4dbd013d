"""Templates that loop on their input, multiply text or recurse are ended; the ones after them are rendered."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from tokbridge.chat_template import ChatTemplate
from tokbridge.errors import ChatTemplateError, ShuttingDownError
from tokbridge.jinja_rendering import RenderJob, render_here
from tokbridge_teacher.prompt import render_worker
from tokbridge_teacher.prompt.render_processes import RenderBounds, RenderProcesses

BOUNDS = RenderBounds(deadline_s=1.0, memory_bytes=256 << 20, max_characters=30_000)
GOOD = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

HOSTILE = {
    "quadratic in its input": "{% for a in messages %}{% for b in messages %}{% for c in a.content %}"
    "{% for d in b.content %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
    "ranges in ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a range past the sandbox's": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "multiplied text": "{{ 'x' * 10 ** 10 }}",
    "multiplied input": "{{ messages[0].content * 10 ** 7 }}",
    "text doubled in a loop": "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}"
    "{% endfor %}{{ n.s }}",
    "a list multiplied": "{{ ([messages] * 10 ** 9) | length }}",
    "padding": "{{ 'x'.ljust(10 ** 10) }}",
    "a filter's padding": "{{ 'x' | center(10 ** 10) }}",
    "a format's width": "{{ '%10000000000d' % 1 }}",
    "replacing": "{{ ('a' * 10 ** 5).replace('a', 'a' * 10 ** 5) }}",
    "a power": "{{ (10 ** 10 ** 9) | length }}",
    "one long call of C": "{{ (3 ** (10 ** 7)) % 7 }}{{ (7 ** (10 ** 8)) % 11 }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "too much text": "{{ 'x' * 30001 }}",
}


@pytest.fixture(scope="module")
def renderers():
    renderers = RenderProcesses(2, BOUNDS)
    yield renderers
    renderers.close()


def job(source: str, content: str = "abc" * 300) -> RenderJob:
    return RenderJob(source, [{"role": "user", "content": content}] * 20, None, True, {"bos_token": "<s>"})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_too_much_is_ended_and_the_next_is_rendered(name, renderers):
    started = time.monotonic()
    with pytest.raises(ChatTemplateError):
        renderers(job(HOSTILE[name]))
    assert time.monotonic() - started < 60, "the bound is seconds, also on a busy machine"
    assert renderers(job(GOOD)) == render_here(job(GOOD))


@pytest.mark.parametrize("content", ["plain", "\x00\n\r\u2028", "é🙂\u0301", '"\\', "{{ 7 * 7 }}"])
def test_the_text_is_what_rendering_here_gives(content, renderers):
    assert renderers(job(GOOD, content)) == render_here(job(GOOD, content))


def test_a_refusal_has_the_templates_own_words(renderers):
    with pytest.raises(ChatTemplateError, match="no such role"):
        renderers(job("{{ raise_exception('no such role') }}"))


def test_a_chat_template_renders_through_them(renderers):
    template = ChatTemplate(GOOD, control_tokens=frozenset({"<|end|>"}))
    bounded = ChatTemplate(GOOD, control_tokens=frozenset({"<|end|>"}), renderer=renderers)
    messages = [{"role": "user", "content": "a <|end|> b"}]
    assert bounded.render_guarded(messages, add_generation_prompt=True) == template.render_guarded(
        messages, add_generation_prompt=True
    )


def test_two_that_loop_hold_up_others_no_longer_than_their_deadline(renderers):
    def loop() -> None:
        with pytest.raises(ChatTemplateError):
            renderers(job(HOSTILE["ranges in ranges"]))

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert renderers(job(GOOD))
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_what_loops_in_python_is_ended_by_its_worker_which_goes_on(renderers):
    """The timer: without it the worker would be killed, and another one started, for every such conversation."""
    assert renderers(job(GOOD))
    workers = children()
    for name in ("quadratic in its input", "ranges in ranges"):
        with pytest.raises(ChatTemplateError, match="takes more than 1 s"):
            renderers(job(HOSTILE[name]))
    assert workers & children() == workers


def test_the_kernel_ends_a_worker_that_stays_in_one_call_of_c():
    """Where no signal is looked at, and nobody may be left to kill it: each job begins with a bound on its time."""
    command = [sys.executable, "-m", render_worker.__name__, "1", str(1 << 30), "30000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdout.readline()
            for _ in range(2):
                worker.stdin.write(json.dumps(asdict(job(GOOD))).encode() + b"\n")
                worker.stdin.flush()
                assert b"text" in worker.stdout.readline()
                limit, _ = resource.prlimit(worker.pid, resource.RLIMIT_CPU)
                assert 0 < limit < 60, "the time to start, and two seconds"
        finally:
            worker.kill()


def children() -> set[int]:
    """Renderers that this process has started and that still run; other tests' processes come and go meanwhile."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        if int(parent) == os.getpid() and state != "Z" and "render_worker" in command:
            found.add(int(folder.name))
    return found


def test_a_worker_starts_beside_more_than_a_thousand_connections():
    """As many as a service holds by its defaults; `select` takes no descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    renderers = RenderProcesses(1, BOUNDS)
    try:
        assert renderers(job(GOOD)) == render_here(job(GOOD))
    finally:
        renderers.close()
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_that_was_killed_is_replaced_and_none_is_left_at_the_end():
    before = children()
    renderers = RenderProcesses(1, BOUNDS)
    assert renderers(job(GOOD))
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert renderers(job(GOOD)), "no conversation pays for what happened before it"
    assert len(children() - before) == 1
    renderers.close()
    assert not children() - before
    with pytest.raises(ShuttingDownError):
        renderers(job(GOOD))
