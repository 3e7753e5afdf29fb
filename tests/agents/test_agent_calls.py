"""HTTP agents against a real agent process: what is sent, and what each answer leads to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mainspring import AgentSettings, Http, InvalidInput, Mainspring, Retry, RunNotSuccessful, State
from mainspring.agents.signing import verify
from mainspring.model.events import RunFailed, RunRetrying, RunSnoozed, SchedulePaused
from mainspring.model.run import Run
from tests.agents.agent_process import AgentProcess, agent
from tests.stored_rows import stored

QUICK = Retry(max_attempts=3, initial="20ms", jitter=0)
ONCE = Retry(max_attempts=1)
WAIT = "20s"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with agent(tmp_path_factory.mktemp("agent")) as process:
        yield process


@pytest.fixture
async def ms() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://", agents=AgentSettings(), poll_interval="100ms")
    async with app.running():
        yield app


async def called(ms: Mainspring, url: str, *, name: str = "x", payload: Any = None, **options: Any) -> Run:
    """One call, to its end."""
    target = {key: options.pop(key) for key in ("method", "headers") if key in options}
    options = {"retry": QUICK, "every": "1h", **options}
    await ms.schedule(name, Http(url, **target), payload=payload, **options)
    handle = await ms.trigger(name)
    with contextlib.suppress(RunNotSuccessful):
        await handle.result(timeout=WAIT)
    return await stored(ms, ms.find_by_id(handle.id))


# ── what is sent ───────────────────────────────────────────────────────────


async def test_the_body_is_the_payload_and_everything_of_ours_is_in_headers(
    ms: Mainspring, there: AgentProcess
) -> None:
    payload = {"reportType": "daily", "naïve": [1, 2.5, None, "ü"]}
    run = await called(ms, there.url("/ok/sent?a=1"), payload=payload, headers={"X-Own": "mine"}, timeout="9s")
    assert run.state is State.SUCCEEDED, run.error
    (call,) = there.calls(key=run.id)
    sent = {name.lower(): value for name, value in call["headers"].items()}
    assert json.loads(call["body"]) == payload
    assert call["body"] == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    assert (call["method"], sent["content-type"], sent["x-own"]) == ("POST", "application/json", "mine")
    assert sent["idempotency-key"] == sent["webhook-id"] == run.id
    assert sent["x-schedule-id"] == run.schedule_id
    assert (sent["x-attempt"], sent["x-fencing-token"]) == ("1", "1")
    assert sent["x-fire-time"].endswith("Z")
    assert sent["x-deadline"] > sent["x-fire-time"]
    assert re.fullmatch(rf"00-{run.id.replace('-', '')}-[0-9a-f]{{16}}-01", sent["traceparent"])
    assert "x-callback-url" not in sent  # the service was not given its public URL
    secret = await ms.signing_secret("x")
    assert verify(secret, sent, call["body"].encode(), time.time())
    assert not verify(secret, sent, call["body"].encode() + b" ", time.time())
    result = json.loads(run.result or "")
    assert (result["status"], json.loads(result["body"])) == (200, {"ok": True})


async def test_no_payload_is_no_body_and_the_method_is_as_given(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/ok/none"), method="GET")
    (call,) = there.calls(key=run.id)
    assert (call["method"], call["body"]) == ("GET", "")
    assert "Content-Type" not in call["headers"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_get_and_head_carry_no_payload(ms: Mainspring, there: AgentProcess, method: str) -> None:
    run = await called(ms, there.url("/ok/none"), method=method, payload={"n": 1})
    (call,) = there.calls(key=run.id)
    assert (call["method"], call["body"]) == (method, "")
    assert "Content-Type" not in call["headers"]


async def test_a_trigger_may_bring_its_own_payload(ms: Mainspring, there: AgentProcess) -> None:
    await ms.schedule("x", Http(there.url("/ok/own")), payload={"n": 1}, every="1h")
    handle = await ms.trigger("x", payload={"n": 2})
    await handle.result(timeout=WAIT)
    assert json.loads(there.calls(key=handle.id)[0]["body"]) == {"n": 2}


async def test_the_secret_is_shown_once_and_both_sign_while_it_rotates(ms: Mainspring, there: AgentProcess) -> None:
    await called(ms, there.url("/ok/rotate"))
    first = await ms.signing_secret("x")
    with pytest.raises(InvalidInput, match="can be read only once, and was read already"):
        await ms.signing_secret("x")
    second = await ms.rotate_secret("x")
    handle = await ms.trigger("x")
    await handle.result(timeout=WAIT)
    (call,) = there.calls(key=handle.id)
    body = call["body"].encode()
    assert verify(first, call["headers"], body, time.time())
    assert verify(second, call["headers"], body, time.time())
    third = await ms.rotate_secret("x", overlap=0)
    handle = await ms.trigger("x")
    await handle.result(timeout=WAIT)
    (call,) = there.calls(key=handle.id)
    assert verify(third, call["headers"], body, time.time())
    assert not verify(second, call["headers"], body, time.time())


# ── answers ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [500, 503, 408, 429])
async def test_what_may_pass_is_tried_again_with_backoff_and_one_key(
    ms: Mainspring, there: AgentProcess, status: int
) -> None:
    run = await called(ms, there.url(f"/status/{status}?times=2"))
    assert run.state is State.SUCCEEDED
    calls = there.calls(key=run.id)
    assert [call["headers"]["X-Attempt"] for call in calls] == ["1", "2", "3"]
    retries = [event for event in await ms.events(run=run.id) if isinstance(event, RunRetrying)]
    first, second = (retry.next_attempt_at - (retry.began_at or 0) - (retry.ms or 0) for retry in retries)
    assert first >= 19
    assert second >= 39  # whole milliseconds, rounded twice
    assert f"answered {status}" in retries[0].error


async def test_a_budget_that_is_spent_is_a_dead_letter(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/status/500"))
    assert (run.state, run.failures, run.dead) == (State.FAILED, 3, True)
    assert len(there.calls(key=run.id)) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301, 302, 307])
async def test_other_answers_fail_at_once(ms: Mainspring, there: AgentProcess, status: int) -> None:
    run = await called(ms, there.url(f"/status/{status}?Location={there.url('/ok/followed')}"))
    assert (run.state, run.failures) == (State.FAILED, 1)
    assert f"answered {status}" in (run.error or "")
    assert len(there.calls(key=run.id)) == 1
    assert not there.calls("/ok/followed")  # a redirect is an answer, not an instruction


async def test_retry_after_is_honoured(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/status/503?times=1&Retry-After=1"))
    first, second = there.calls(key=run.id)
    assert second["at"] - first["at"] >= 0.99
    (retry,) = [event for event in await ms.events(run=run.id) if isinstance(event, RunRetrying)]
    assert retry.next_attempt_at - (retry.began_at or 0) >= 1_000


async def test_an_answer_that_does_not_come_in_time_is_tried_again(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/slow/30?times=1"), timeout="300ms")
    assert run.state is State.SUCCEEDED
    (retry,) = [event for event in await ms.events(run=run.id) if isinstance(event, RunRetrying)]
    assert "timed out after 0.3 s" in retry.error
    assert len({call["key"] for call in there.calls(key=run.id)}) == 1


async def test_a_refused_connection_is_tried_again(ms: Mainspring) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = await called(ms, f"http://127.0.0.1:{port}/x?key=hidden")
    assert (run.state, run.failures) == (State.FAILED, 3)
    assert run.error == f"POST http://127.0.0.1:{port}/x: the connection was refused"
    assert "hidden" not in (run.error or "")


async def test_gone_pauses_the_schedule_and_says_why(
    ms: Mainspring, there: AgentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    run = await called(ms, there.url("/status/410"))
    assert (run.state, run.reason, run.failures) == (State.FAILED, "gone", 1)
    for _ in range(500):  # the settler does it soon
        schedule = await ms.get("x")
        if schedule.state == "paused":
            break
        await asyncio.sleep(0.02)
    assert schedule.state == "paused"
    assert "answered 410" in (schedule.reason or "")
    assert any(isinstance(event, SchedulePaused) for event in await ms.events(schedule="x"))
    (line,) = [record.getMessage() for record in caplog.records if "was paused" in record.getMessage()]
    assert line.startswith("schedule 'x' was paused: gone: ")
    assert line.endswith("To resume it: mainspring schedules resume x")


# ── large, slow and hostile answers ────────────────────────────────────────


async def test_ten_megabytes_are_not_kept(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/big"))
    result = json.loads(run.result or "")
    assert run.state is State.SUCCEEDED
    assert (result["truncated"], len(result["body"])) == (True, 64 * 1024)
    assert result["bytes"] < 3 * 1024 * 1024


async def test_a_body_that_drips_is_a_time_out(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/drip"), timeout="300ms", retry=ONCE)
    (ended,) = [event for event in await ms.events(run=run.id) if isinstance(event, RunFailed)]
    assert (ended.reason, run.state) == ("timeout", State.FAILED)


async def test_a_compressed_bomb_is_not_unpacked(ms: Mainspring, there: AgentProcess) -> None:
    run = await called(ms, there.url("/bomb"))
    result = json.loads(run.result or "")
    assert run.state is State.SUCCEEDED
    assert result["truncated"] is True
    assert len(result["body"]) <= 64 * 1024
    assert result["bytes"] < 256 * 1024  # of fifty megabytes


async def test_an_agent_that_repeats_our_secrets_is_not_believed(ms: Mainspring, there: AgentProcess) -> None:
    secrets = {"Authorization": "Bearer c4n4ry-1", "X-Api-Key": "c4n4ry-2", "X-Team": "c4n4ry-3"}
    good = await called(ms, there.url("/echo"), name="good", headers=secrets)
    bad = await called(ms, there.url("/echo?status=400"), name="bad", headers=secrets)
    assert "[redacted]" in (good.result or "")
    assert "[redacted]" in (bad.error or "")
    assert "c4n4ry" not in f"{good} {bad}"


# ── a slow agent delays no other schedule ──────────────────────────────────


async def test_a_hundred_slow_agents_beside_a_fast_one_that_stays_on_time(there: AgentProcess) -> None:
    app = Mainspring("memory://", poll_interval="200ms", concurrency=1, shutdown_timeout="0s")
    for number in range(100):
        app.http(f"slow-{number}", there.url("/slow/60"), every="1s", timeout="30s", retry=ONCE)
    app.http("fast", there.url("/ok/fast"), every="200ms")
    beats: list[float] = []

    @app.every("200ms")
    async def python() -> None:
        beats.append(time.monotonic())

    async with app.running():
        await there.until(200, "/slow/60")
        before = len(there.calls("/ok/fast"))
        fast = (await there.until(before + 10, "/ok/fast"))[before : before + 10]
    late = [call["at"] - _instant(call["headers"]["X-Fire-Time"]) for call in fast]
    assert len({call["headers"]["X-Fire-Time"] for call in fast}) == 10
    assert max(late) < 5, late  # a slow call takes thirty
    assert len(beats) >= 10


async def test_a_busy_host_holds_up_no_other_host_and_counts_no_attempt(there: AgentProcess) -> None:
    app = Mainspring("memory://", agents=AgentSettings(per_host=2, concurrency=8), poll_interval="100ms")
    async with app.running():
        await app.schedule("busy", Http(there.url("/slow/3")), every="1h", timeout="10s", retry=ONCE)
        busy = [await app.trigger("busy") for _ in range(30)]  # more than the worker's queue and all slots
        await there.until(2, "/slow/3")
        other = f"http://localhost:{there.port}/ok/other"  # the same agent under another name
        await app.schedule("other", Http(other), every="1h")
        handle = await app.trigger("other")
        await handle.result(timeout="10s")
        assert sum([await run.state() is State.SUCCEEDED for run in busy]) <= 2
        async with asyncio.timeout(20):
            while len(await app.runs(state="running")) < 26:  # noqa: ASYNC110 - all wait here; none is sent back
                await asyncio.sleep(0.02)
        assert not await app.events(types=[RunSnoozed])
        assert {(await run.run()).attempt for run in busy} == {1}
        for run in busy:
            await app.cancel(run.id)


async def test_calls_at_the_limit_of_a_host_begin_when_a_slot_is_free_and_their_time_limit_begins_then(
    there: AgentProcess,
) -> None:
    app = Mainspring("memory://", agents=AgentSettings(per_host=1, concurrency=8), poll_interval="100ms")
    async with app.running():
        await app.schedule("busy", Http(there.url("/slow/1")), every="1h", timeout="2500ms", retry=ONCE)
        busy = [await app.trigger("busy") for _ in range(4)]  # the last waits for longer than its time limit
        for handle in busy:
            await handle.result(timeout="20s")
        assert [call["headers"]["X-Attempt"] for call in there.calls("/slow/1")] == ["1"] * 4
        assert {(await handle.run()).attempt for handle in busy} == {1}
        assert max([(await handle.run()).duration_ms or 0 for handle in busy]) < 2_500


def _instant(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
