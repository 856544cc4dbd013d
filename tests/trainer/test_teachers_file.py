"""A `teachers_file` is followed while samples are scored: whole new content only, and what is wrong changes nothing."""

import asyncio

import pytest

from support.stand_in_teacher import StandIn, factory, sample_of
from tokbridge.errors import TeacherUnavailableError
from tokbridge_trainer.feed import Feed, ListFile
from tokbridge_trainer.teachers import following
from tokbridge_trainer.teachers.following import FileWatch
from tokbridge_trainer.teachers.listing import parse_list
from tokbridge_trainer.teachers.member import StudentSide

OLD = "members: {t: {urls: ['old:1']}}\n"
NEW = "members: {t: {urls: ['new:1']}}\n"


def test_content_counts_once_it_stands_still():
    watch = FileWatch(b"a")
    looks = [b"a", b"ab", b"abc", b"abc", b"abc", "cannot read", "cannot read", "cannot read", b"abc", b"abc"]
    assert [watch.look(found) for found in looks] == [0, 0, 0, 1, 0, 0, 1, 0, 0, 1]


@pytest.fixture
def clients():
    return {name: StandIn(name=name.upper()) for name in ("old", "new", "lost")}


@pytest.fixture
async def followed(tmp_path, clients, monkeypatch):
    """A feed and its file."""
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.005)
    path = tmp_path / "teachers.yaml"
    path.write_text(OLD)
    first = parse_list(OLD.encode(), path, frozenset())
    feed = Feed(first, StudentSide("student", {}, factory(clients)), ListFile(path, frozenset({"level"})))
    await feed.connect()
    yield feed, path
    await feed.close()


async def report(feed, step):
    """One sample of a step."""
    await feed.submit(sample_of(step, 0))
    found, batch = await asyncio.wait_for(feed.collect(step, 1), 10)
    assert len(batch.scored) == 1
    return found


async def events_until(feed, wanted, first_step=0):
    """Train steps until the events of one hold a text."""
    for step in range(first_step, first_step + 2000):
        found = await report(feed, step)
        events = str(found.metrics.get("teachers/events", ""))
        if wanted in events:
            return events, step + 1
        await asyncio.sleep(0.005)
    raise AssertionError(f"nothing like {wanted!r} happened")


async def test_the_teacher_changes_with_the_file(followed, clients):
    feed, path = followed
    assert (await report(feed, 0)).metrics["teachers/t/model"] == "OLD"
    path.write_text(NEW)
    events, step = await events_until(feed, "changes", 1)
    assert events == "teacher t changes from OLD at old:1 to NEW at new:1"
    assert (await report(feed, step)).metrics["teachers/t/model"] == "NEW"
    assert clients["old"].is_closed


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("members: [", "is not YAML"),
        ("members: {t: {urls: ['new:1'], weight: -1}}", "members.t.weight"),
        ("members: {t: {urls: ['new:1'], weight_column: trust}}", "prompts.columns"),
        (None, "cannot read"),
    ],
)
async def test_a_bad_file_keeps_the_list_and_says_so(followed, clients, content, why):
    feed, path = followed
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    events, step = await events_until(feed, why)
    assert events.startswith("the list of teachers stays as it was")
    assert (await report(feed, step)).metrics["teachers/t/model"] == "OLD"
    path.write_text(NEW)
    await events_until(feed, "NEW", step + 1)


async def test_a_file_that_mends_the_list_does_not_wait_for_the_one_before(followed, clients, monkeypatch):
    feed, path = followed

    async def never(student):
        await asyncio.Event().wait()

    monkeypatch.setattr(clients["lost"], "connect", never)
    path.write_text("members: {t: {urls: ['lost:1']}}")
    await asyncio.sleep(0.05)
    path.write_text(NEW)
    await events_until(feed, "NEW")
    assert clients["lost"].is_closed


async def test_a_feed_that_starts_anew_finds_the_present_list(followed, clients):
    _, path = followed
    path.write_text(NEW)
    first = parse_list(OLD.encode(), path, frozenset())
    restarted = Feed(first, StudentSide("student", {}, factory(clients)), ListFile(path, frozenset()))
    assert {name: teacher.model for name, teacher in (await restarted.connect()).items()} == {"t": "NEW"}
    await restarted.close()


async def test_a_step_that_waits_for_a_lost_teacher_goes_on_with_the_next(followed, clients):
    feed, path = followed
    path.write_text("members: {t: {urls: ['lost:1'], on_failure: wait}}")
    _, step = await events_until(feed, "LOST")
    clients["lost"].failures["*"] = TeacherUnavailableError("gone")
    stuck = asyncio.create_task(report(feed, step))
    await asyncio.sleep(0.05)
    assert not stuck.done()
    path.write_text(NEW)
    metrics = (await asyncio.wait_for(stuck, 10)).metrics
    assert metrics["teachers/t/model"] == "LOST, NEW"
    assert metrics["teachers/t/resent"] == 1


async def test_what_happens_is_told_while_a_step_waits(followed, clients, monkeypatch):
    feed, path = followed
    clients["old"].failures["*"] = TeacherUnavailableError("gone")
    path.write_text("members: {t: {urls: ['old:1'], on_failure: wait, timeout_s: 7}}")
    assert (await asyncio.wait_for(feed.news(), 10))[0].startswith("teacher t changes")
    stuck = [asyncio.create_task(report(feed, step)) for step in (0, 0, 1)]
    waits = "teacher t does not answer and is asked again: gone"
    assert await asyncio.wait_for(feed.news(), 10) == [waits, waits]
    path.write_text("members: {t: {urls: []}}")
    (refused,) = await asyncio.wait_for(feed.news(), 10)
    assert refused.startswith("the list of teachers stays as it was: wrong configuration: members.t.urls")
    assert not any(task.done() for task in stuck)
    for task in stuck:
        task.cancel()


async def test_a_fault_in_following_ends_a_step_that_waits(followed, clients, monkeypatch):
    feed, path = followed
    clients["old"].gate.clear()
    stuck = asyncio.create_task(report(feed, 0))

    def faulty(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(following, "usable", faulty)
    path.write_text(NEW)
    with pytest.raises(ZeroDivisionError):
        await stuck
