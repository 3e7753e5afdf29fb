"""Agents that answer 202: the run is theirs until they call back, at any instance, or fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from mainspring import AgentSettings, Http, Mainspring, ResultTimeout, Retry, RunHandle, RunNotSuccessful, State
from mainspring.agents.signing import callback_token, new_secret
from mainspring.api.app import build
from mainspring.app.internals import host_of
from mainspring.model.events import LeaseExpired, RunFailed, RunRetrying, RunSucceeded, StaleResultRejected
from mainspring.model.run import Run
from servers.for_tests import fresh_url
from tests.agents.agent_process import AgentProcess, agent, serving
from tests.stored_rows import stored

QUICK = Retry(max_attempts=3, initial="20ms", jitter=0)
WAIT = "20s"


class World(Struct):
    """An instance that calls agents, and another one at which they call back."""

    caller: Mainspring
    hears: Mainspring
    url: str
    agent: AgentProcess

    async def begin(self, path: str, **options: Any) -> RunHandle[Any]:
        target = {key: options.pop(key) for key in ("silence", "within") if key in options}
        await self.caller.schedule("x", Http(self.agent.url(path), **target), every="1h", retry=QUICK, **options)
        handle: RunHandle[Any] = await self.caller.trigger("x")
        return handle

    async def ended(self, handle: RunHandle[Any]) -> Run:
        """The run when it has ended, however it did."""
        with contextlib.suppress(RunNotSuccessful, ResultTimeout):
            await handle.result(timeout=WAIT)
        return await self.run(handle.id)

    async def run(self, run_id: str) -> Run:
        return await stored(self.hears, self.hears.find_by_id(run_id))

    async def held(self, run_id: str) -> Run:
        """Wait until the agent holds the run: the worker that called it does not."""

        async def left(runtime: Any) -> bool:
            worker = runtime.workers.agents
            return run_id not in worker.running and not worker.heart._to_hand_over

        await self.agent.until(1, key=run_id)
        async with asyncio.timeout(20):
            while not await host_of(self.caller).call(left):  # noqa: ASYNC110 - the engine's own state
                await asyncio.sleep(0.01)
        return await self.run(run_id)

    async def say(self, run_id: str, verb: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """Call back, as the agent would."""
        (call, *_) = self.agent.calls(key=run_id)
        token = call["headers"]["X-Callback-Token"] if token is None else token
        assert call["headers"]["X-Callback-Url"] == f"{self.url}/api/callbacks/{run_id}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.url}/api/callbacks/{run_id}/{verb}"
        async with aiohttp.ClientSession() as session, session.post(url, headers=headers, data=body) as answer:
            return answer.status, await answer.json(content_type=None)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with agent(tmp_path_factory.mktemp("agent")) as process:
        yield process


@pytest.fixture
async def world(tmp_path: Path, there: AgentProcess) -> AsyncIterator[World]:
    store = f"sqlite:///{tmp_path}/ms.db"
    hears = Mainspring(store)
    async with serving(build(hears)) as url:
        caller = Mainspring(store, agents=AgentSettings(public_url=url), poll_interval="100ms", lease_ttl="900ms")
        async with caller.running():
            yield World(caller, hears, url, there)
        await hears.close()


async def test_an_accepted_call_ends_by_its_callback_at_another_instance(world: World) -> None:
    handle = await world.begin("/accept/progress-heartbeat-complete")
    result = await handle.result(timeout=WAIT)
    assert (result.status, json.loads(result.body)) == (202, {"rows": 3})
    run = await world.run(handle.id)
    assert (run.state, run.attempt, run.epoch) == (State.SUCCEEDED, 1, 1)
    assert len(world.agent.calls(key=handle.id)) == 1
    events = await world.caller.events(run=handle.id)
    (ended,) = [event for event in events if isinstance(event, RunSucceeded)]
    assert ended.actor == "agent"
    assert not any(isinstance(event, StaleResultRejected) for event in events)


async def test_the_agent_keeps_its_lease_by_heartbeats_much_longer_than_a_worker_would(world: World) -> None:
    """Five beats within three seconds under a silence of two; the caller's own leases are shorter still."""
    handle = await world.begin("/accept/" + "600-heartbeat-" * 5 + "complete", silence="2s")
    run = await world.ended(handle)
    assert (run.state, run.attempt, run.crashes) == (State.SUCCEEDED, 1, 0)


async def test_an_agent_may_be_silent_longer_than_a_workers_lease(world: World) -> None:
    handle = await world.begin("/accept/2000-complete", silence="6s")  # the caller's leases are less than a second
    run = await world.ended(handle)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)


async def test_the_slot_is_free_and_progress_is_shown_while_the_agent_works(world: World) -> None:
    handle = await world.begin("/accept/silence")
    run = await world.held(handle.id)
    assert run.state is State.RUNNING
    assert (await world.say(handle.id, "progress", '{"fraction": 0.25, "message": "rows"}'))[0] == 200
    assert (await world.run(handle.id)).progress == "25% rows"
    assert (await world.say(handle.id, "complete"))[0] == 200
    assert (await world.run(handle.id)).state is State.SUCCEEDED


async def test_a_callback_that_never_comes_is_a_lease_that_ends_and_the_call_is_made_again(world: World) -> None:
    handle = await world.begin("/accept/silence?times=1", silence="1s")
    await handle.result(timeout=WAIT)
    first, second = world.agent.calls(key=handle.id)
    assert [call["headers"]["X-Fencing-Token"] for call in (first, second)] == ["1", "2"]
    assert second["at"] - first["at"] >= 1.0
    assert any(isinstance(event, LeaseExpired) for event in await world.caller.events(run=handle.id))


async def test_the_same_on_postgresql(there: AgentProcess) -> None:
    store = fresh_url()
    hears = Mainspring(store)
    async with serving(build(hears)) as url:
        caller = Mainspring(store, agents=AgentSettings(public_url=url), poll_interval="100ms", lease_ttl="900ms")
        world = World(caller, hears, url, there)
        async with caller.running():
            handle = await world.begin("/accept/silence?times=1", silence="1s")
            await handle.result(timeout=WAIT)
            assert (await world.run(handle.id)).attempt == 2
            await caller.delete("x")
            handle = await world.begin("/accept/600-heartbeat-600-progress-600-heartbeat-complete", silence="2s")
            await handle.result(timeout=WAIT)
            assert (await world.run(handle.id)).attempt == 1
        await hears.close()


async def test_an_agent_that_outlives_its_caller_is_still_heard(tmp_path: Path, there: AgentProcess) -> None:
    store = f"sqlite:///{tmp_path}/ms.db"
    hears = Mainspring(store)
    async with serving(build(hears)) as url:
        caller = Mainspring(store, agents=AgentSettings(public_url=url), lease_ttl="900ms", shutdown_timeout="5s")
        world = World(caller, hears, url, there)
        async with caller.running():
            handle = await world.begin("/accept/silence")
            await there.until(1, key=handle.id)
        assert (await world.run(handle.id)).state is State.RUNNING  # not handed back: it is the agent's
        assert (await world.say(handle.id, "heartbeat"))[0] == 200
        assert (await world.say(handle.id, "complete", b'{"done": true}'))[0] == 200
        assert (await world.run(handle.id)).state is State.SUCCEEDED
        await hears.close()


async def test_a_failure_is_tried_again_by_the_policy_and_after_the_time_the_agent_asks_for(world: World) -> None:
    handle = await world.begin("/accept/silence?times=1")
    await world.held(handle.id)
    assert await world.say(handle.id, "fail", '{"error": "busy", "retryAfter": 0.5}') == (200, {"state": "retrying"})
    await handle.result(timeout=WAIT)
    (retry,) = [e for e in await world.caller.events(run=handle.id) if isinstance(e, RunRetrying)]
    assert (retry.error, retry.actor) == ("busy", "agent")
    first, second = world.agent.calls(key=handle.id)
    assert second["at"] - first["at"] >= 0.5


async def test_a_failure_that_is_final_is_final(world: World) -> None:
    handle = await world.begin("/accept/fail")
    with pytest.raises(RunNotSuccessful, match="no paper left"):
        await handle.result(timeout=WAIT)
    (ended,) = [e for e in await world.caller.events(run=handle.id) if isinstance(e, RunFailed)]
    assert (ended.reason, len(world.agent.calls(key=handle.id))) == ("agent", 1)


async def test_said_twice_is_said_once(world: World) -> None:
    handle = await world.begin("/accept/silence")
    await world.held(handle.id)
    assert await world.say(handle.id, "complete", b"1") == (200, {"state": "succeeded"})
    assert await world.say(handle.id, "complete", b"2") == (200, {"state": "succeeded"})
    assert json.loads((await world.run(handle.id)).result or "")["body"] == "1"
    assert (await world.say(handle.id, "heartbeat"))[0] == 409
    assert (await world.say(handle.id, "fail", '{"error": "late"}'))[0] == 409


async def test_a_late_callback_of_an_earlier_attempt_is_refused(world: World) -> None:
    handle = await world.begin("/accept/silence", silence="1s")
    await world.agent.until(2, key=handle.id)
    for verb, body in (("heartbeat", None), ("progress", "{}"), ("complete", b"1"), ("fail", '{"error": "x"}')):
        status, problem = await world.say(handle.id, verb, body)
        assert (status, problem.get("title")) == (409, "The attempt is over"), verb
    newest = world.agent.calls(key=handle.id)[-1]["headers"]["X-Callback-Token"]
    with contextlib.suppress(RunNotSuccessful):
        assert (await world.say(handle.id, "complete", b"1", newest))[0] in (200, 409)


async def test_a_cancelled_run_tells_its_agent_at_the_next_heartbeat(world: World) -> None:
    handle = await world.begin("/accept/silence", silence="2s")
    await world.held(handle.id)
    await world.caller.cancel(handle.id, reason="not wanted")
    status, standing = await world.say(handle.id, "heartbeat")
    assert (status, standing["cancel"]) == (200, "not wanted")
    with pytest.raises(RunNotSuccessful, match="cancelled"):  # it stops calling, the lease ends
        await handle.result(timeout=WAIT)


async def test_only_the_token_of_this_attempt_opens_the_door(world: World) -> None:
    handle = await world.begin("/accept/silence")
    run = await world.held(handle.id)
    good = world.agent.calls(key=handle.id)[0]["headers"]["X-Callback-Token"]
    epoch, expires, mac = good.split(".")
    forged = callback_token(new_secret(), run.id, run.epoch, int(expires))
    wrong = [
        "",
        "x",
        "1.2.3",
        f"{epoch}.{int(expires) + 1}.{mac}",
        f"2.{expires}.{mac}",
        forged,
        good[:-1],
        "é",
        "¹.².",
    ]
    for token in wrong:
        status, problem = await world.say(handle.id, "complete", b"1", token.encode().decode("latin-1"))
        assert status == 401, token
        assert problem["status"] == 401
        assert good not in str(problem)
    assert (await world.run(handle.id)).state is State.RUNNING
    other = await world.caller.trigger("x")
    await world.agent.until(1, key=other.id)
    assert (await world.say(other.id, "complete", b"1", good))[0] == 401
    for one in (handle, other):
        await world.held(one.id)
        assert (await world.say(one.id, "complete"))[0] == 200


UNREADABLE: list[tuple[str, str | bytes, int]] = [
    ("fail", "{", 400),
    ("fail", "{}", 422),
    ("fail", '{"error": 5}', 422),
    ("fail", '{"error": "x", "retryafter": 1}', 422),
    ("progress", '{"fraction": 2}', 422),
    ("progress", '{"message": "\xff"}'.encode("latin-1"), 400),
    ("complete", b"x" * 200_000, 413),
]


async def test_a_callback_that_cannot_be_read_changes_nothing(world: World) -> None:
    handle = await world.begin("/accept/silence")
    await world.held(handle.id)
    for verb, body, status in UNREADABLE:
        assert (await world.say(handle.id, verb, body))[0] == status, (verb, body)
        assert (await world.run(handle.id)).state is State.RUNNING
    assert (await world.say(handle.id, "complete"))[0] == 200


async def test_an_unknown_run_is_not_found(world: World) -> None:
    handle = await world.begin("/accept/complete")
    await handle.result(timeout=WAIT)
    url, headers = f"{world.url}/api/callbacks/nobody/complete", {"Authorization": "Bearer 1.2.3"}
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as answer:
        assert answer.status == 404
