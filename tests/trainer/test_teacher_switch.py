"""The list of teachers changes while samples are under way."""

import asyncio
from dataclasses import replace

import pytest

from support.stand_in_teacher import StandIn, factory, sample_of, teacher_list
from tokbridge.client import ClientCredentials
from tokbridge.errors import DeadlineExceededError, TeacherUnavailableError
from tokbridge_trainer.samples import ScoredSample
from tokbridge_trainer.teachers.member import StudentSide
from tokbridge_trainer.teachers.panel import Resend
from tokbridge_trainer.teachers.switch import Switch
from tokbridge_trainer.teachers.tally import StepTally


@pytest.fixture
def clients():
    return {name: StandIn(name=name.upper()) for name in ("old", "new", "other")}


@pytest.fixture
async def switch(clients):
    switch = Switch(StudentSide("student", {}, factory(clients)))
    await switch.start(teacher_list({"t": at("old")}))
    yield switch
    await switch.close()


def at(host, **values):
    return {"urls": [f"{host}:1"], **values}


async def becomes(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_new_samples_go_to_the_new_teacher_and_the_old_one_ends_what_it_has(switch, clients):
    clients["old"].gate.clear()
    tally = StepTally()
    under_way = asyncio.create_task(switch.panel.score(sample_of(0, 0), tally))
    await becomes(lambda: clients["old"].waiting)
    await switch.change(teacher_list({"t": at("new")}))
    assert clients["new"].students == ["student"]
    assert isinstance(await switch.panel.score(sample_of(0, 1), tally), ScoredSample)
    assert not clients["old"].is_closed
    clients["old"].gate.set()
    assert isinstance(await under_way, ScoredSample)
    await becomes(lambda: clients["old"].is_closed)
    assert [len(clients[name].requests) for name in ("old", "new")] == [1, 1]
    metrics = tally.metrics()
    assert metrics["teachers/t/model"] == "OLD, NEW"
    assert metrics["teachers/t/resent"] == 0
    changes = switch.take_changes()
    assert changes["teachers/events"] == "teacher t changes from OLD at old:1 to NEW at new:1"
    assert changes["teachers/changes"] == 1
    assert await switch.news() == [changes["teachers/events"]]
    assert switch.take_changes()["teachers/changes"] == 0


async def test_another_key_is_another_connection_to_the_same_teacher(switch, clients):
    same = teacher_list({"t": at("old")})
    member = switch.panel.members["t"]
    await switch.change(same)
    assert switch.panel.members["t"] is member
    await switch.change(replace(same, credentials={"t": ClientCredentials(api_key="new")}))
    assert switch.panel.members["t"] is not member
    assert clients["old"].students == ["student", "student"]


async def test_what_the_old_one_does_not_answer_in_time_is_resent(switch, clients):
    clients["old"].gate.clear()
    tally = StepTally()
    under_way = asyncio.create_task(switch.panel.score(sample_of(0, 0), tally))
    await becomes(lambda: clients["old"].waiting)
    await switch.change(teacher_list({"t": at("new")}, drain_s=0.01))
    assert await asyncio.wait_for(under_way, 10) == Resend()
    assert tally.of("t").resent == 1
    assert not tally.of("t").failures


async def test_what_waits_for_a_slot_of_the_old_one_is_resent_at_once(switch, clients):
    await switch.change(teacher_list({"t": at("other", max_in_flight=1)}))
    clients["other"].gate.clear()
    tally = StepTally()
    first = asyncio.create_task(switch.panel.score(sample_of(0, 0), tally))
    await becomes(lambda: clients["other"].waiting)
    second = asyncio.create_task(switch.panel.score(sample_of(0, 1), tally))
    await asyncio.sleep(0.01)
    await switch.change(teacher_list({"t": at("new")}))
    assert await asyncio.wait_for(second, 10) == Resend()
    clients["other"].gate.set()
    assert isinstance(await first, ScoredSample)
    assert len(clients["other"].requests) == 1


async def test_a_teacher_that_fails_on_its_way_out_is_not_the_samples_fault(switch, clients):
    await switch.change(teacher_list({"t": at("other", on_failure="skip")}))
    clients["other"].gate.clear()
    clients["other"].failures["*"] = TeacherUnavailableError("gone")
    under_way = asyncio.create_task(switch.panel.score(sample_of(0, 0), StepTally()))
    await becomes(lambda: clients["other"].waiting)
    await switch.change(teacher_list({"t": at("new")}))
    clients["other"].gate.set()
    assert await under_way == Resend()


async def test_who_waits_for_a_lost_teacher_is_freed_by_the_new_list(switch, clients):
    await switch.change(teacher_list({"t": at("other", on_failure="wait")}))
    clients["other"].failures["*"] = TeacherUnavailableError("gone")
    waiting = asyncio.create_task(switch.panel.score(sample_of(0, 0), StepTally()))
    await becomes(lambda: clients["other"].requests)
    await switch.change(teacher_list({"t": at("new")}))
    assert await asyncio.wait_for(waiting, 10) == Resend()


RULE = [{"column": "x", "equals": "1", "to": ["t"]}]
AWAY = {"t": at("other", on_failure="wait"), "u": at("new")}


@pytest.mark.parametrize(
    "changed",
    [
        teacher_list(AWAY | {"t": at("other", on_failure="others")}, routes=RULE, default=["t", "u"]),
        teacher_list(AWAY, routes=RULE, default=["u"]),
    ],
    ids=["another fallback", "another rule"],
)
async def test_who_waits_for_a_lost_teacher_is_freed_though_it_stays_listed(switch, clients, changed):
    await switch.change(teacher_list(AWAY, routes=RULE, default=["t", "u"]))
    clients["other"].failures["*"] = TeacherUnavailableError("gone")
    tally = StepTally()
    waiting = asyncio.create_task(switch.panel.score(sample_of(0, 0), tally))
    await becomes(lambda: clients["other"].requests)
    await switch.change(changed)
    assert await asyncio.wait_for(waiting, 10) == Resend()
    assert not clients["other"].is_closed
    assert tally.of("t").resent == 1
    assert tally.of("t").asked_again == 0


async def test_a_list_whose_teacher_does_not_come_up_changes_nothing(switch, clients):
    clients["new"].failures["connect"] = TeacherUnavailableError("no teacher answers at new:1")
    before = switch.panel
    await switch.change(teacher_list({"t": at("new"), "u": at("other")}))
    assert switch.panel is before
    assert clients["new"].is_closed
    assert clients["other"].is_closed
    assert not clients["old"].is_closed
    metrics = switch.take_changes()
    assert metrics["teachers/events"] == "the list of teachers stays as it was: no teacher answers at new:1"
    assert (metrics["teachers/refused_lists"], metrics["teachers/changes"]) == (1, 0)


async def test_a_teacher_whose_weight_or_fallback_changes_keeps_its_connection(switch, clients):
    await switch.change(teacher_list({"t": at("old", weight=5.0, on_failure="skip"), "u": at("new")}))
    assert clients["old"].students == ["student"]
    assert switch.panel.config.members["t"].weight == 5.0
    assert await switch.news() == ["teacher u joins: NEW at new:1"]
    await switch.change(teacher_list({"t": at("old")}))
    await becomes(lambda: clients["new"].is_closed)
    assert await switch.news() == ["teacher u leaves: NEW at new:1"]
    await switch.change(teacher_list({"t": at("old", weight=2.0)}))
    assert await switch.news() == ["the teachers are the same, rules or weights changed"]
    assert not clients["old"].is_closed


async def test_a_key_that_would_cross_a_network_in_the_clear_is_told(switch, clients, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "a-secret-key")
    await switch.change(teacher_list({"t": at("new", api_key_env="TEACHER_KEY")}))
    events = await switch.news()
    assert events[1].startswith("WARNING: the API key goes to new:1 without encryption")
    assert "a-secret-key" not in str(events)


@pytest.mark.parametrize(
    "failure", [TeacherUnavailableError("away"), DeadlineExceededError("late")], ids=["away", "late"]
)
async def test_a_list_with_another_fallback_frees_what_waits(switch, clients, failure):
    clients["old"].failures["*"] = failure
    await switch.change(teacher_list({"t": at("old", on_failure="wait"), "u": at("new")}))
    tally = StepTally()
    stuck = asyncio.create_task(switch.panel.score(sample_of(0, 0), tally))
    await becomes(lambda: tally.of("t").failures)
    await switch.change(teacher_list({"t": at("old", on_failure="others"), "u": at("new")}))
    assert await asyncio.wait_for(stuck, 10) == Resend()
    assert (tally.of("t").resent, tally.of("t").asked_again) == (1, 0)
    scored = await switch.panel.score(sample_of(0, 0), tally)
    assert [*scored.shares] == ["u"]
    assert len(clients["old"].students) == 1


async def test_what_fails_once_the_list_has_changed_is_a_matter_of_the_new_one(switch, clients):
    clients["old"].gate.clear()
    under_way = asyncio.create_task(switch.panel.score(sample_of(0, 0), StepTally()))
    await becomes(lambda: clients["old"].waiting)
    await switch.change(teacher_list({"t": at("old", on_failure="skip")}))
    clients["old"].failures["*"] = TeacherUnavailableError("away")
    clients["old"].gate.set()
    assert await under_way == Resend()


async def test_a_list_that_says_the_same_changes_nothing(switch):
    await switch.change(teacher_list({"t": at("old", weight=2.0)}))
    panel = switch.panel
    await switch.change(teacher_list({"t": at("old", weight=2.0)}))
    assert switch.panel is panel
    assert (await switch.news())[1] == "the list of teachers was written again and says what it said before"
    assert switch.take_changes()["teachers/changes"] == 1


async def test_closing_closes_those_that_leave(switch, clients):
    clients["old"].gate.clear()
    under_way = asyncio.create_task(switch.panel.score(sample_of(0, 0), StepTally()))
    await becomes(lambda: clients["old"].waiting)
    await switch.change(teacher_list({"t": at("new")}))
    await switch.close()
    assert clients["old"].is_closed
    assert clients["new"].is_closed
    assert await under_way == Resend()
