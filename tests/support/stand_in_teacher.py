"""A teacher client without a teacher: answers when told to, or fails as told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from support.fake_teacher import TEACHER
from support.random_rows import random_rows
from support.training import make_config, make_sample, score
from tokbridge.client import ClientCredentials
from tokbridge.errors import RequestCancelledError
from tokbridge.targets import RowCase, TargetRows
from tokbridge_trainer.config_teachers import MemberConfig
from tokbridge_trainer.feed import Feed
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.teachers.listing import TeacherList, configured_teachers
from tokbridge_trainer.teachers.member import StudentSide


class StandIn:
    """One teacher's client; its rows are random, the same for the same request and seed."""

    def __init__(self, failures=(), name="fake", seed=0):
        self.failures = dict(failures)
        """By request id, `*` for every request, `connect`; a list is raised one by one and then no more."""
        self.teacher = replace(TEACHER, model=name, instance_id=name)
        self.seed = seed
        self.requests = []
        self.waiting = 0
        self.most_waiting = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.students = []
        self.is_closed = False

    async def connect(self, student):
        if "connect" in self.failures:
            raise self.failures["connect"]
        self.students.append(student)
        return self.teacher

    async def score(self, request):
        self.requests.append(request)
        self.waiting += 1
        self.most_waiting = max(self.waiting, self.most_waiting)
        try:
            while not self.gate.is_set():
                if self.is_closed:
                    raise RequestCancelledError("closed")
                await asyncio.sleep(0.001)
        finally:
            self.waiting -= 1
        failure = self.failures.get(request.request_id, self.failures.get("*"))
        if isinstance(failure, list):
            failure = failure.pop(0) if failure else None
        if failure is not None:
            raise failure
        return self.answer(request)

    def answer(self, request):
        sample = make_sample([1], request.token_ids.tolist(), request.stop_id)
        rows = random_rows(np.random.default_rng(self.seed), request.num_rows)
        cases = np.where(rows.cases == RowCase.STOP, RowCase.ALIGNED, rows.cases).astype(np.uint8)
        return score(sample, TargetRows(**(vars(rows) | {"cases": cases}))).result

    async def close(self):
        self.is_closed = True


def teacher_list(members, **others) -> TeacherList:
    """A list of teachers by name; URLs are made of the names where none are given."""
    named = {name: {"urls": [f"{name}:1"], **member} for name, member in members.items()}
    return configured_teachers(make_config(teacher=None, teachers={"members": named, **others}))


def factory(clients: Mapping[str, StandIn]):
    """Clients by the host of the first URL."""

    def make(config: MemberConfig, _: ClientCredentials) -> StandIn:
        return clients[config.urls[0].split(":")[0]]

    return make


async def make_feed(teachers: TeacherList, clients: Mapping[str, StandIn]) -> Feed:
    """A connected feed; its student is the text `student`."""
    feed = Feed(teachers, StudentSide("student", {"enable_thinking": True}, factory(clients)))
    await feed.connect()
    return feed


def sample_of(step, prompt_index, sample_index=0):
    """A sample of three tokens that was cut."""
    return make_sample([1, 2], [3, 4, 5], None, SampleKey(step, prompt_index, sample_index))
