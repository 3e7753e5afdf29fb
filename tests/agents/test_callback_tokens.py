"""Callback tokens: only a service can make one, and an old signing secret can be ended at once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainspring import Http, Mainspring
from mainspring.agents.signing import callback_token, read_token
from mainspring.agents.vault import OLD_TOKENS_MS, Vault
from mainspring.api.app import build
from mainspring.backends.memory.store import MemoryStore


async def ask(ms: Mainspring, path: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build(ms)), base_url="http://127.0.0.1") as client:
        return await client.post(path, **more)


@pytest.fixture
async def ms() -> Any:
    app = Mainspring("memory://", store=MemoryStore())
    await app.schedule("call", Http("http://127.0.0.1:9/"), every="1h")
    yield app
    await app.close()


async def test_the_signing_secret_makes_no_callback_token(ms: Mainspring) -> None:
    """Before, whoever verified calls could make a token for any run of the schedule, with any expiry."""
    secret = await ms.signing_secret("call")
    run = await ms.trigger("call")
    token = callback_token(secret, run.id, 0, 4_000_000_000_000)
    for verb in ("heartbeat", "progress", "complete", "fail"):
        headers = {"Authorization": f"Bearer {token}"}
        body = {"error": "forged"} if verb == "fail" else {}
        answer = await ask(ms, f"/api/callbacks/{run.id}/{verb}", headers=headers, json=body)
        assert answer.status_code == 401, answer.text


async def test_tokens_of_an_earlier_version_are_accepted_for_its_attempts_only() -> None:
    store = MemoryStore()
    now = store._clock.now()
    vault = Vault(store, lambda: now)
    secret = (await vault.secrets("s"))[0]
    key, since = await vault.callback_key()
    assert key != secret
    old = callback_token(secret, "run", 1, now + 10_000)
    assert read_token(old, await vault.token_keys("s", since - 5_000), "run", now) == 1
    assert read_token(old, await vault.token_keys("s", since + OLD_TOKENS_MS - 1), "run", now) == 1
    for began_at in (None, since + OLD_TOKENS_MS, since + 2 * OLD_TOKENS_MS):
        assert read_token(old, await vault.token_keys("s", began_at), "run", now) is None
    assert await Vault(store, lambda: now).callback_key() == (key, since)
    calls = await vault.load(None, "s")
    assert calls == vault.cached(None, "s")
    assert calls.callback_key == key


async def test_a_rotation_can_end_the_old_secret_at_once(ms: Mainspring) -> None:
    """Before, REST had no way to end a leaked secret: it signed for another day."""
    from mainspring.app.internals import host_of

    async def in_force() -> tuple[str, ...]:
        schedule = await ms.get("call")
        found: tuple[str, ...] = await host_of(ms).call(lambda runtime: runtime.vault.secrets(schedule.id))
        return found

    first = (await in_force())[0]
    second = (await ask(ms, "/api/schedules/call/rotate-secret")).json()["signingSecret"]
    assert await in_force() == (second, first)
    third = (await ask(ms, "/api/schedules/call/rotate-secret", json={"overlapMs": 0})).json()["signingSecret"]
    assert await in_force() == (third,)
    fourth = (await ask(ms, "/api/schedules/call/rotate-secret", json={"overlapMs": "1h"})).json()["signingSecret"]
    assert await in_force() == (fourth, third)
    assert await ms.rotate_secret("call", overlap=0) == (await in_force())[0]
    assert len(await in_force()) == 1
    for wrong in ({"overlapMs": -1}, {"overlapMs": "soon"}, {"overlapMs": "99999999w"}, {"overlap": 0}):
        assert (await ask(ms, "/api/schedules/call/rotate-secret", json=wrong)).status_code == 422, wrong
