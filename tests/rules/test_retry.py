"""Retries: the formulas of R4, the budget, and the times at which the engine really tries again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Cancel, Context, Mainspring, Retry, RetryPolicy, Snooze, State
from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.account import ledger
from mainspring.model.errors import InvalidInput
from mainspring.model.events import RunFailed, RunHandedBack, RunRetrying, RunSnoozed
from mainspring.rules.retry import backoff, retry_at
from mainspring.testing.time_travel import travel
from tests.stored_rows import stored

T0 = 1_767_600_000_000
START = "2026-01-05T08:00Z"


class Always:
    """Randomness that always says the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def delays(policy: RetryPolicy, n: int = 6) -> list[int]:
    return [backoff(policy, failure) for failure in range(1, n + 1)]


# ── the formulas ──


def test_fixed_is_the_initial_delay_each_time() -> None:
    assert delays(Retry(backoff="fixed", initial="5s")) == [5_000] * 6


def test_fixed_is_not_cut_by_max_delay() -> None:
    assert delays(Retry(backoff="fixed", initial="2m", max_delay="1m"), 2) == [120_000, 120_000]


def test_linear_is_initial_times_1_plus_multiplier_times_n_minus_1() -> None:
    assert delays(Retry(backoff="linear", initial="2s"), 4) == [2_000, 4_000, 6_000, 8_000]
    assert delays(Retry(backoff="linear", initial="2s", multiplier=0.5), 4) == [2_000, 3_000, 4_000, 5_000]
    assert delays(Retry(backoff="linear", initial="2s", multiplier=0), 3) == [2_000] * 3


def test_exponential_is_initial_times_base_to_the_n_minus_1() -> None:
    assert delays(Retry(initial="1s", max_delay="1h"), 6) == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    assert delays(Retry(initial="1s", base=3, max_delay="1h"), 4) == [1_000, 3_000, 9_000, 27_000]
    assert delays(Retry(initial="100ms", base=1.5, max_delay="1h"), 4) == [100, 150, 225, 338]


def test_exponential_ends_at_max_delay() -> None:
    assert delays(Retry(initial="1s", max_delay="5s"), 5) == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert delays(Retry(initial="10s", max_delay="5s"), 2) == [5_000, 5_000]


def test_source_001_1_2_4_minutes() -> None:
    assert delays(Retry(initial="1m", base=2, max_delay="1h"), 3) == [60_000, 120_000, 240_000]


@pytest.mark.parametrize("failure", [1_025, 5_000, 10**9])
def test_a_power_beyond_every_float_is_max_delay(failure: int) -> None:
    assert backoff(Retry(initial="1s", base=1000, max_delay="1m"), failure) == 60_000


def test_an_initial_of_zero_stays_zero() -> None:
    assert delays(Retry(initial=0), 3) == [0, 0, 0]


@given(
    st.sampled_from(["fixed", "linear", "exponential"]),
    st.integers(0, 10**7),
    st.floats(1, 1000),
    st.floats(0, 100),
    st.integers(0, 10**8),
    st.integers(1, 2_000),
)
def test_delays_never_shrink_and_are_whole_milliseconds(
    kind: Any, initial: int, base: float, multiplier: float, cap: int, failure: int
) -> None:
    policy = RetryPolicy(backoff=kind, initial=initial, base=base, multiplier=multiplier, max_delay=cap)
    delay = backoff(policy, failure)
    assert isinstance(delay, int)
    assert 0 <= delay <= backoff(policy, failure + 1)
    if kind == "exponential":
        assert delay <= cap


# ── jitter ──


@pytest.mark.parametrize(("said", "late"), [(0.0, 1_000), (0.5, 1_250), (0.999, 1_500)])
def test_jitter_is_times_1_plus_jitter_times_random(said: float, late: int) -> None:
    assert retry_at(Retry(jitter=0.5), 1, T0, Always(said)) == T0 + late


def test_jitter_comes_after_max_delay() -> None:
    assert retry_at(Retry(max_attempts=99, max_delay="5s", jitter=1), 9, T0, Always(0.5)) == T0 + 7_500


def test_no_jitter_is_exact() -> None:
    policy = Retry(max_attempts=9, jitter=0)
    assert [retry_at(policy, n, T0, random.Random(1)) for n in (1, 2, 3)] == [T0 + 1_000, T0 + 2_000, T0 + 4_000]


def test_jitter_is_the_injected_randomness_and_nothing_else() -> None:
    policy = Retry(max_attempts=99, jitter=1)
    ours, rng = random.Random(7), random.Random(7)
    for failure in range(1, 20):
        delay = backoff(policy, failure)
        assert retry_at(policy, failure, T0, ours) == T0 + round(delay * (1 + rng.random()))


# ── the budget ──


def test_max_attempts_counts_executions_in_all() -> None:
    policy = Retry(max_attempts=3, jitter=0)
    assert retry_at(policy, 2, T0, Always(0)) is not None
    assert retry_at(policy, 3, T0, Always(0)) is None
    assert retry_at(policy, 4, T0, Always(0)) is None


def test_max_attempts_1_is_no_retry() -> None:
    assert retry_at(Retry(max_attempts=1), 1, T0, Always(0)) is None


def test_the_defaults_are_those_of_the_design() -> None:
    assert Retry() == RetryPolicy() == RetryPolicy(3, "exponential", 1_000, 2.0, 1.0, 60_000, 0.5)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_attempts": 0}, "retry.max_attempts"),
        ({"max_attempts": True}, "retry.max_attempts"),
        ({"max_attempts": 1.5}, "retry.max_attempts"),
        ({"backoff": "expo"}, "retry.backoff"),
        ({"jitter": 1.1}, "retry.jitter"),
        ({"jitter": -0.1}, "retry.jitter"),
        ({"base": 0.5}, "retry.base"),
        ({"multiplier": -1}, "retry.multiplier"),
        ({"initial": "-1s"}, "retry.initial"),
        ({"max_delay": "soon"}, "retry.max_delay"),
        ({"jitter": float("nan")}, "retry.jitter"),
        ({"base": float("nan")}, "retry.base"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_policy_is_refused_with_its_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as told:
        Retry(**wrong)
    assert told.value.field == field


# ── the engine, on the virtual clock ──


class Seeded(random.Random):
    """Remembers what it said, so that a test can compute the same delays."""

    def __init__(self) -> None:
        super().__init__(4711)
        self.said: list[float] = []

    def random(self) -> float:
        value = super().random()
        self.said.append(value)
        return value


async def failing(policy: RetryPolicy) -> tuple[list[int], list[float], Any, list[Any]]:
    """When each attempt of a task that always fails began, what the randomness said, the run, its events."""
    rng = Seeded()
    ms = Mainspring("memory://", rng=rng, lease_ttl="10m")
    began: list[int] = []

    @ms.task(retry=policy)
    async def fails() -> None:
        began.append(ms.clock.now())
        raise ValueError("no")

    async with travel(ms, START) as t:
        rng.said.clear()
        handle = await fails.enqueue()
        await t.advance("6h")
        assert (await ledger(t.runtime.store, t.clock.now())).unexplained == 0
        return began, rng.said, await handle.run(), await ms.events(run=handle.id)


@pytest.mark.parametrize(
    "policy",
    [
        Retry(max_attempts=4, backoff="fixed", initial="7s", jitter=0.3),
        Retry(max_attempts=5, backoff="linear", initial="2s", multiplier=1.5, jitter=1),
        Retry(max_attempts=6, backoff="exponential", initial="1s", base=3, max_delay="30s", jitter=0.5),
        Retry(max_attempts=3, jitter=0),
        Retry(max_attempts=1),
    ],
    ids=["fixed", "linear", "exponential", "no_jitter", "no_retry"],
)
async def test_the_engine_tries_again_exactly_when_the_formula_says(policy: RetryPolicy) -> None:
    began, said, run, events = await failing(policy)
    assert len(began) == policy.max_attempts
    assert len(said) == policy.max_attempts - 1
    for n in range(1, policy.max_attempts):
        assert began[n] - began[n - 1] == round(backoff(policy, n) * (1 + policy.jitter * said[n - 1]))
    retrying = [event for event in events if isinstance(event, RunRetrying)]
    assert [event.next_attempt_at for event in retrying] == began[1:]
    assert isinstance(events[-1], RunFailed)
    assert (run.state, run.dead, run.failures, run.attempt) == (
        State.FAILED,
        True,
        policy.max_attempts,
        policy.max_attempts,
    )
    assert run.error == "ValueError: no"


async def test_a_run_between_two_attempts_is_retrying_with_its_next_attempt_time() -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, backoff="fixed", initial="1m", jitter=0))
    async def fails(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("no")
        return ctx.attempt

    async with travel(ms, START) as t:
        handle = await fails.enqueue()
        await t.settle()
        run = await stored(ms, handle.run())
        assert (run.state, run.ready_at, run.failures) == (State.RETRYING, t.clock.now() + 60_000, 1)
        await t.advance("59s")
        assert (await handle.run()).state is State.RETRYING
        await t.advance("1s")
        assert await handle.result() == 2


async def test_a_schedules_own_policy_wins_over_its_tasks_and_a_calls_over_both() -> None:
    ms = Mainspring("memory://")
    tries: dict[str, int] = {}

    @ms.task(retry=Retry(max_attempts=2, initial=0, jitter=0))
    async def fails(name: str) -> None:
        tries[name] = tries.get(name, 0) + 1
        raise ValueError("no")

    async with travel(ms, START) as t:
        await fails.enqueue("task")
        await fails.using(retry=Retry(max_attempts=4, initial=0, jitter=0)).enqueue("call")
        policy = Retry(max_attempts=3, initial=0, jitter=0)
        await ms.schedule("s", fails, delay="1s", args=("schedule",), retry=policy)
        await t.advance("10s")
        assert tries == {"task": 2, "call": 4, "schedule": 3}


async def test_a_timeout_is_a_failure_and_is_tried_again() -> None:
    ms = Mainspring("memory://")

    @ms.task(timeout="10s", retry=Retry(max_attempts=2, backoff="fixed", initial="5s", jitter=0))
    async def slow() -> None:
        await asyncio.sleep(60)

    async with travel(ms, START) as t:
        handle = await slow.enqueue()
        await t.advance("10s")
        assert (await handle.state()) is State.RETRYING
        await t.advance("15s")
        run = await handle.run()
        assert (run.state, run.reason, run.failures, run.error) == (State.FAILED, "timeout", 2, "timed out after 10 s")


async def snooze_app(t_calls: list[int], answers: list[Any]) -> Mainspring:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, backoff="fixed", initial="1s", jitter=0))
    async def work() -> Any:
        t_calls.append(ms.clock.now())
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ms


async def test_returning_snooze_calls_again_later_and_is_no_failure() -> None:
    calls: list[int] = []
    ms = await snooze_app(calls, [Snooze("10m"), Snooze("1h"), "done"])
    async with travel(ms, START) as t:
        handle = await ms.tasks["work"].enqueue()
        await t.settle()
        run = await stored(ms, handle.run())
        assert (run.state, run.ready_at, run.failures) == (State.WAITING, t.clock.now() + 600_000, 0)
        await t.advance("70m")
        assert [call - calls[0] for call in calls] == [0, 600_000, 4_200_000]
        run = await stored(ms, handle.run())
        assert (run.state, run.attempt, run.failures, run.result) == (State.SUCCEEDED, 3, 0, '"done"')
        snoozed = [event for event in await ms.events(run=handle.id) if isinstance(event, RunSnoozed)]
        assert [event.until for event in snoozed] == calls[1:]


async def test_a_snooze_leaves_the_failures_as_they_were() -> None:
    calls: list[int] = []
    ms = await snooze_app(calls, [ValueError("1"), Snooze("1m"), ValueError("2"), "never"])
    async with travel(ms, START) as t:
        handle = await ms.tasks["work"].enqueue()
        await t.advance("10m")
        run = await handle.run()
        assert (run.state, run.failures, run.attempt, len(calls)) == (State.FAILED, 2, 3, 3)


async def test_returning_cancel_ends_the_run_as_cancelled_without_a_retry() -> None:
    calls: list[int] = []
    ms = await snooze_app(calls, [Cancel("customer is gone"), "never"])
    async with travel(ms, START) as t:
        handle = await ms.tasks["work"].enqueue()
        await t.advance("10m")
        run = await handle.run()
        assert (run.state, run.reason, run.dead, len(calls)) == (State.CANCELLED, "customer is gone", False, 1)


async def test_retry_now_reopens_a_dead_letter_with_a_fresh_budget() -> None:
    calls: list[int] = []
    ms = await snooze_app(calls, [ValueError("1"), ValueError("2"), ValueError("3"), "done"])
    async with travel(ms, START) as t:
        handle = await ms.tasks["work"].enqueue()
        await t.advance("10m")
        assert (await handle.run()).dead
        await ms.retry(handle.id)
        await t.advance("10m")
        run = await handle.run()
        assert (run.state, run.attempt, run.failures, run.dead) == (State.SUCCEEDED, 4, 1, False)


async def test_a_run_handed_back_by_a_shutdown_spends_nothing() -> None:
    store = MemoryStore()

    def app(seconds: float) -> Mainspring:
        ms = Mainspring(store=store)

        @ms.task(retry=Retry(max_attempts=1))
        async def work() -> str:
            await asyncio.sleep(seconds)
            return "done"

        return ms

    first = app(60)
    async with travel(first, START) as t:
        handle = await first.tasks["work"].enqueue()
        await t.advance("1s")
        assert (await handle.run()).state is State.RUNNING
    again = app(1)
    async with travel(again, "2026-01-05T08:00:05Z") as t:
        await t.advance("1s")
        run = await again.find_by_id(handle.id)
        assert (run.state, run.attempt, run.failures, run.crashes) == (State.SUCCEEDED, 2, 0, 0)
        handed = [event for event in await again.events(run=handle.id) if isinstance(event, RunHandedBack)]
        assert [(event.reason, event.began) for event in handed] == [("shutdown", True)]
