"""The feed with one stand-in teacher: concurrent, each sample once, failures raised or dropped and counted."""

import asyncio

import pytest

from support.stand_in_teacher import StandIn, make_feed, sample_of
from support.training import make_config
from tokbridge.client import ClientCredentials
from tokbridge.errors import DeadlineExceededError, UnspellableByteError
from tokbridge_trainer.teachers.listing import configured_teachers
from tokbridge_trainer.teachers.member import make_client


async def feed_of(client, **teacher):
    config = make_config(teacher={"urls": ["localhost:1"], **teacher})
    return await make_feed(configured_teachers(config), {"localhost": client})


async def test_samples_are_sent_at_once_and_collected_in_the_order_of_their_keys():
    client = StandIn()
    feed = await feed_of(client)
    for prompt_index in (2, 0, 1):
        await feed.submit(sample_of(0, prompt_index))
    await asyncio.sleep(0.01)
    assert len(client.requests) == 3
    report, batch = await feed.collect(0, 3)
    assert [scored.sample.key.prompt_index for scored in batch.scored] == [0, 1, 2]
    assert report.seconds >= 0
    assert client.requests[0].template_arguments == {"enable_thinking": True}


async def test_steps_do_not_mix():
    feed = await feed_of(StandIn())
    await feed.submit(sample_of(1, 0))
    collecting = asyncio.create_task(feed.collect(0, 1))
    await asyncio.sleep(0.01)
    assert not collecting.done()
    await feed.submit(sample_of(0, 0))
    assert (await collecting)[1].scored[0].sample.key.step == 0
    assert (await feed.collect(1, 1))[1].scored[0].sample.key.step == 1


async def test_a_sample_that_comes_twice_is_scored_once():
    client = StandIn()
    feed = await feed_of(client)
    for _ in range(2):
        await feed.submit(sample_of(0, 0))
    await feed.submit(sample_of(0, 1))
    _, batch = await feed.collect(0, 2)
    assert len(batch.scored) == len(client.requests) == 2


async def test_what_has_arrived_is_known_until_the_step_is_handed_out():
    client = StandIn()
    client.gate.clear()
    feed = await feed_of(client)
    collecting = asyncio.create_task(feed.collect(0, 3))
    await asyncio.sleep(0)
    assert await feed.arrived(0) == frozenset()
    await feed.submit_all([sample_of(0, 0), sample_of(0, 1)])
    assert await feed.arrived(0) == {(0, 0, 0), (0, 1, 0)}
    await feed.submit_all([sample_of(0, 1), sample_of(0, 2)])
    client.gate.set()
    await asyncio.wait_for(collecting, 5)
    assert len(client.requests) == 3
    assert await feed.arrived(0) is None
    await feed.submit_all([sample_of(0, 1)])
    assert await feed.arrived(0) is None


async def test_calls_may_reach_the_feed_in_any_order():
    """Ray's asynchronous actors promise none: what comes before its step is asked for is kept."""
    feed = await feed_of(StandIn())
    assert await feed.arrived(0) == frozenset()
    await feed.submit_all([sample_of(0, 0)])
    _, batch = await asyncio.wait_for(feed.collect(0, 3, [sample_of(0, 1)], [sample_of(0, 2)]), 5)
    assert [scored.sample.key.prompt_index for scored in batch.scored] == [0, 1, 2]
    again = asyncio.create_task(feed.collect(0, 1))
    await asyncio.sleep(0)
    await feed.submit_all([sample_of(0, 3)])
    assert [scored.sample.key.prompt_index for scored in (await asyncio.wait_for(again, 5))[1].scored] == [3]


async def test_no_more_than_the_limit_wait_for_a_service():
    client = StandIn()
    client.gate.clear()
    feed = await feed_of(client, max_in_flight=2)
    for prompt_index in range(5):
        await feed.submit(sample_of(0, prompt_index))
    await asyncio.sleep(0.01)
    client.gate.set()
    await feed.collect(0, 5)
    assert client.most_waiting == 2


async def test_each_url_adds_to_the_limit():
    client = StandIn()
    client.gate.clear()
    feed = await feed_of(client, max_in_flight=2, urls=["localhost:1", "localhost:2"])
    for prompt_index in range(6):
        await feed.submit(sample_of(0, prompt_index))
    await asyncio.sleep(0.01)
    client.gate.set()
    await feed.collect(0, 6)
    assert client.most_waiting == 4


def test_the_real_client_has_what_the_configuration_says():
    config = make_config(
        teacher={"urls": ["grpcs://a:1", "b:2"], "timeout_s": 7, "max_silence_s": 3, "max_replica_divergence": 0.5}
    )
    member = configured_teachers(config).config.members["teacher"]
    client = make_client(member, ClientCredentials(ca=b"certificate"))
    assert [target.address for target in client.targets] == ["a:1", "b:2"]


async def test_failures_are_raised_by_default():
    feed = await feed_of(StandIn(failures={"step0-prompt1-sample0": DeadlineExceededError("late")}))
    await feed.submit(sample_of(0, 0))
    await feed.submit(sample_of(0, 1))
    with pytest.raises(DeadlineExceededError, match="late"):
        await feed.collect(0, 2)


async def test_dropped_samples_are_counted_by_reason():
    failures = {
        "step0-prompt0-sample0": DeadlineExceededError("late"),
        "step0-prompt2-sample0": UnspellableByteError("byte"),
    }
    feed = await feed_of(StandIn(failures=failures), on_failure="drop")
    for prompt_index in range(4):
        await feed.submit(sample_of(0, prompt_index))
    _, batch = await feed.collect(0, 4)
    assert [scored.sample.key.prompt_index for scored in batch.scored] == [1, 3]
    assert batch.drops == {"deadline_exceeded": 1, "unspellable_byte": 1}
    assert batch.num_response_tokens == 6


async def test_a_fault_that_is_no_typed_error_does_not_hang_the_step():
    feed = await feed_of(StandIn(failures={"step0-prompt0-sample0": ZeroDivisionError()}))
    await feed.submit(sample_of(0, 0))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(feed.collect(0, 1), 5)


async def test_closing_ends_what_is_under_way():
    client = StandIn()
    client.gate.clear()
    feed = await feed_of(client)
    await feed.submit(sample_of(0, 0))
    await asyncio.wait_for(feed.close(), 5)
