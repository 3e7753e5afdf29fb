"""Repeated calls to a remote store: which failures are repeated, how often, and what the caller receives in the end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest

from mainspring.backends.remote import retries
from mainspring.backends.remote.failures import ConnectionLost, WriteConflict
from mainspring.backends.remote.retries import resend_until_answered, retry_conflicts, translate_failures
from mainspring.backends.remote.server_wait import ServerStarting, wait_for_server
from mainspring.model.errors import OutcomeUnknown, StoreDenied, StoreError, StoreUnavailable

AWAY = StoreUnavailable("away")
LOST, CONFLICT = ConnectionLost(AWAY), WriteConflict(StoreError("deadlock"))


class Calls:
    """Raises the given exceptions one after the other, then answers; records the argument of each call."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.arguments: list[bool | None] = []

    async def __call__(self, resent: bool | None = None) -> str:
        self.arguments.append(resent)
        if self._failures:
            raise self._failures.pop(0)
        return "answer"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RESEND_SECONDS", 0.05)
    monkeypatch.setattr(retries, "_RESEND_PAUSE_SECONDS", 0.01)


async def test_a_conflicting_call_is_repeated_until_it_succeeds() -> None:
    calls = Calls(CONFLICT, CONFLICT)
    assert await retry_conflicts(calls) == "answer"
    assert len(calls.arguments) == 3


async def test_the_fifth_conflict_raises_its_store_error() -> None:
    calls = Calls(*[CONFLICT] * 9)
    with pytest.raises(StoreError, match="deadlock"):
        await retry_conflicts(calls)
    assert len(calls.arguments) == 5


async def test_a_lost_connection_is_not_repeated_by_reads() -> None:
    for repeat in (retry_conflicts, _translate):
        calls = Calls(LOST)
        with pytest.raises(StoreUnavailable, match="away"):
            await repeat(calls)
        assert len(calls.arguments) == 1


async def _translate(call: Callable[[], Awaitable[str]]) -> str:
    return await translate_failures(call())


async def test_a_write_knows_that_it_is_resent_only_after_a_lost_answer() -> None:
    calls = Calls(CONFLICT, LOST, AWAY, CONFLICT)
    assert await resend_until_answered(calls, "the store") == "answer"
    assert calls.arguments == [False, False, True, True, True]


async def test_a_write_that_was_never_sent_is_not_repeated() -> None:
    calls = Calls(AWAY)
    with pytest.raises(StoreUnavailable):
        await resend_until_answered(calls, "the store")
    assert calls.arguments == [False]


async def test_a_write_whose_answer_stays_lost_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match=r"^the store went away while a change was being stored \(away\)"):
        await resend_until_answered(Calls(*[LOST] * 99), "the store")


async def test_after_a_lost_answer_every_final_failure_leaves_the_outcome_unknown() -> None:
    """The write whose answer was lost may be stored, so an error that says "nothing was changed" would be wrong."""
    for failure in (CONFLICT, StoreError("no"), StoreDenied("no")):
        with pytest.raises(OutcomeUnknown):
            await resend_until_answered(Calls(LOST, *[failure] * 99), "the store")
    with pytest.raises(StoreError, match="deadlock") as raised:
        await resend_until_answered(Calls(*[CONFLICT] * 9), "the store")
    assert not isinstance(raised.value, OutcomeUnknown)


async def test_a_starting_server_is_waited_for_and_a_refusal_is_final(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("mainspring.test")
    assert await wait_for_server(Calls(ServerStarting(AWAY)), 2_000, log) == "answer"
    assert [record.getMessage()[:21] for record in caplog.records] == ["away; next try in 0.2"]
    refused = Calls(StoreDenied("no"))
    with pytest.raises(StoreDenied):
        await wait_for_server(refused, 2_000, log)
    assert len(refused.arguments) == 1


async def test_the_wait_for_a_server_ends_with_the_reason() -> None:
    with pytest.raises(StoreUnavailable, match=r"^away; gave up after 0\.01 s\. Start the server or check the URL"):
        await wait_for_server(Calls(*[ServerStarting(AWAY)] * 99), 10, logging.getLogger("mainspring.test"))
