"""Locks: one holder, tokens that grow, waiting and not, on every store and on the real engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from mainspring import ExecutionGuard, InvalidInput, LockLost, LockTaken, Mainspring
from mainspring.app.internals import host_of
from mainspring.engine.locks.held_lock import HeldLock
from mainspring.model.errors import EmptyName, InvalidDuration, LeaseTooShort, MainspringError, SyncOnLoop
from mainspring.ports.lock import LockHolder
from tests.engine.locks.lock_support import row, second
from tests.engine.support import Make


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store: these tests ask no clock but its own."""
    if request.param == "postgres":
        from servers.for_tests import fresh_url

        return fresh_url()
    if request.param == "valkey":
        from servers.for_tests_redis import fresh_url as fresh_prefix

        return fresh_prefix()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"


async def test_the_token_grows_with_every_holder_and_is_never_given_twice(ms: Mainspring) -> None:
    tokens = []
    for _ in range(3):
        async with ms.lock("x") as guard:
            assert guard.held
            guard.check()
            tokens.append(guard.token)
        async with ms.lock("y"):
            pass
        await ms.close()  # a restart
    with pytest.raises(ZeroDivisionError):
        async with ms.lock("x") as guard:
            tokens.append(guard.token)
            raise ZeroDivisionError
    async with ms.lock("x") as guard:
        tokens.append(guard.token)
    assert tokens == [1, 2, 3, 4, 5]


async def test_a_taken_lock_is_refused_at_once_and_the_holder_named(ms: Mainspring, make: Make) -> None:
    other = await second(make, ms)
    async with ms.lock("x") as guard:
        for app in (ms, other):
            with pytest.raises(LockTaken, match="the lock 'x' is held by ") as error:
                async with app.lock("x", wait=False):
                    raise AssertionError("two holders")
            assert error.value.name == "x"
            assert error.value.holder == guard._hold.term.owner
            async with app.lock("x2", wait=False), app.lock("X", wait=False):
                pass
    async with other.lock("x", wait=False) as guard:
        assert guard.token == 2


async def test_another_namespace_has_its_own_locks(ms: Mainspring, make: Make) -> None:
    other = await second(make, ms, namespace="default:x")
    async with ms.lock("x:y", wait=False), other.lock("y", wait=False) as guard:
        assert guard.token == 1


async def test_waiters_get_it_in_their_order_and_one_at_a_time(ms: Mainspring) -> None:
    inside: list[int] = []
    order: list[int] = []

    async def work(number: int) -> int:
        async with ms.lock("x") as guard:
            inside.append(number)
            assert len(inside) == 1
            await asyncio.sleep(0)
            order.append(number)
            inside.remove(number)
            return guard.token

    tokens = await asyncio.gather(*(work(number) for number in range(20)))
    assert sorted(order) == list(range(20))
    assert tokens == [order.index(number) + 1 for number in range(20)]


async def test_one_process_hands_over_to_another(ms: Mainspring, make: Make) -> None:
    other = await second(make, ms)
    held, entered = asyncio.Event(), asyncio.Event()

    async def wait_for_it() -> int:
        held.set()
        async with other.lock("x", wait="20s") as guard:
            entered.set()
            return guard.token

    async with ms.lock("x"):
        waiting = asyncio.create_task(wait_for_it())
        await held.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not entered.is_set()
    assert await waiting == 2


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(ms: Mainspring) -> None:
    async def wait_for_it() -> None:
        async with ms.lock("x"):
            raise AssertionError("the block was cancelled before it could get the lock")

    async with ms.lock("x"):
        waiting = [asyncio.create_task(wait_for_it()) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        assert await asyncio.gather(*waiting, return_exceptions=True) == [_Cancelled()] * 3
    async with ms.lock("x", wait="20s") as guard:
        assert guard.token == 2


async def test_a_caller_cancelled_while_the_answer_comes_does_not_keep_the_lock(ms: Mainspring) -> None:
    """At every await of the way in: the lock is got inside the block, or is free afterwards."""
    got = []

    async def enter() -> None:
        async with ms.lock("x", wait="20s"):
            got.append(True)

    await ms.schedules()
    for steps in range(40):
        task = asyncio.create_task(enter())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with ms.lock("x", wait="20s"):
            pass


async def test_a_blocked_loop_does_not_lose_the_lock(ms: Mainspring, make: Make) -> None:
    """Renewals are made by the engine's thread: the block's own loop may be busy for as long as it likes."""
    async with ms.lock("x", ttl="3s") as guard:
        before = now = await row(ms, "lock:")
        while now.expires_at < before.expires_at + 500:
            now = threading_call(ms)  # the loop does nothing else meanwhile
        guard.check()
        assert (now.owner, now.epoch) == (before.owner, guard.token)


def threading_call(ms: Mainspring) -> Any:
    """Ask from another thread while this one blocks."""
    answer: list[Any] = []
    asking = threading.Thread(target=lambda: answer.append(asyncio.run(row(ms, "lock:"))))
    asking.start()
    asking.join()
    return answer[0]


async def test_a_lock_outlives_a_run_inside_it(ms: Mainspring) -> None:
    done = []

    @ms.task
    async def work() -> None:
        done.append(True)

    async with ms.lock("deploy") as guard:
        await work.enqueue()
        await ms.run_async(until_idle=True, signals=False)  # closes the store when it is through
        guard.check()
        with pytest.raises(LockTaken):
            async with ms.lock("deploy", wait=False):
                pass
    assert done == [True]
    async with ms.lock("deploy", wait=False) as guard:
        assert guard.token == 2


async def test_a_lock_lost_inside_the_block(ms: Mainspring) -> None:
    """Another owner takes it: the block is stopped, the event set, the error clear, the task as before."""
    seen = []
    guard = None
    with pytest.raises(LockLost, match=r"the lock 'x' \(token 1\) was lost: ") as error:
        async with ms.lock("x", ttl="300ms") as guard:
            await _take_away(ms, guard)
            try:
                await asyncio.Event().wait()
            finally:
                seen.append((guard.lost.is_set(), guard.held))
                with pytest.raises(LockLost):
                    guard.check()
    assert seen == [(True, False)]
    assert (error.value.name, error.value.token) == ("x", 1)
    assert isinstance(error.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left to be raised
    async with ms.lock("x", wait="20s") as guard:
        assert guard.token == 3


async def test_a_lock_lost_before_the_block_begins(ms: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss may be told before the answer has been heard: a loop that was busy hears both at once."""
    acquire = HeldLock.acquire

    async def lose_at_once(self: HeldLock, timeout: float | None) -> bool:
        got = await acquire(self, timeout)
        self._lose("gone")
        return got

    monkeypatch.setattr(HeldLock, "acquire", lose_at_once)
    for _ in range(20):
        with pytest.raises(LockLost, match="gone"):
            async with ms.lock("x") as guard:
                await asyncio.Event().wait()
        assert guard.lost.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_does_not_notice_the_loss_still_ends_with_it(ms: Mainspring) -> None:
    with pytest.raises(LockLost):
        async with ms.lock("x") as guard:
            await _take_away(ms, guard)


async def test_an_error_of_the_block_stays_what_it_is(ms: Mainspring) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        async with ms.lock("x") as guard:
            await _take_away(ms, guard)
            raise ZeroDivisionError
    assert "was lost" in error.value.__notes__[0]


async def test_a_cancellation_from_outside_stays_one(ms: Mainspring) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with ms.lock("x"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with ms.lock("x", wait="20s"):
        pass


async def test_a_lock_is_for_one_block(ms: Mainspring) -> None:
    lock = ms.lock("x")
    async with lock:
        pass
    with pytest.raises(MainspringError, match="this lock object was used already"):
        async with lock:
            pass


def test_the_blocking_door(make: Make) -> None:
    ms = make()
    order: list[int] = []

    def work() -> None:
        for _ in range(5):
            with ms.sync.lock("x", ttl="1s", wait="20s") as guard:
                guard.check()
                assert not guard.lost.is_set()
                order.append(guard.token)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == list(range(1, 21))
    with ms.sync.lock("x"), pytest.raises(LockTaken), ms.sync.lock("x", wait=False):
        pass
    with pytest.raises(LockLost), ms.sync.lock("x", ttl="300ms") as guard:
        asyncio.run(_take_away(ms, guard))
        assert guard.lost.wait(20)
        assert not guard.held


async def test_a_blocking_lock_on_a_loop_is_refused_with_what_to_write(ms: Mainspring) -> None:
    with pytest.raises(SyncOnLoop, match=r"write: async with ms\.lock"), ms.sync.lock("x"):
        pass


FORKING = """
    import os, sys
    from mainspring import LockLost, LockTaken, Mainspring

    ms = Mainspring(sys.argv[1])
    said = []
    try:
        with ms.sync.lock("x") as guard:
            child = os.fork()
            if child == 0:
                said.append(guard.held)
            else:
                assert os.waitpid(child, 0)[1] == 0
                guard.check()
                try:
                    with ms.sync.lock("x", wait=False):
                        raise SystemExit("the child let go of it")
                except LockTaken:
                    pass
    except LockLost as error:
        os._exit(0 if child == 0 and said == [False] and "forked" in str(error) else 3)
    os._exit(0 if child else 4)
"""


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path: Path) -> None:
    program = textwrap.dedent(FORKING)
    command = [sys.executable, "-W", "ignore", "-c", program, f"sqlite:///{tmp_path}/x.db"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"name": ""}, EmptyName, "name: '' is empty"),
        ({"name": "x" * 256}, EmptyName, "name: 256 characters are too many"),
        ({"name": "a\nb"}, EmptyName, "control characters"),
        ({"name": 7}, EmptyName, "name: 7"),
        ({"ttl": "299ms"}, LeaseTooShort, "ttl: 299ms is too short. Use at least 300ms"),
        ({"ttl": 0}, LeaseTooShort, "ttl: 0s is too short"),
        ({"ttl": "-1s"}, InvalidDuration, "ttl: '-1s' is negative"),
        ({"ttl": "soon"}, InvalidDuration, "ttl: 'soon' is not a duration"),
        ({"wait": "soon"}, InvalidDuration, "wait: 'soon' is not a duration"),
        ({"wait": None}, InvalidDuration, "wait: NoneType is not a duration"),
        ({"kind": "redlock"}, InvalidInput, "kind: 'redlock' is not one of lease, advisory"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        Mainspring("memory://").lock(**{"name": "x", **options})
    assert said in str(raised.value)


async def test_a_store_without_advisory_locks_says_so(plain_ms: Mainspring) -> None:
    with pytest.raises(InvalidInput, match=r'kind: this store has no advisory locks\. Use kind="lease"'):
        async with plain_ms.lock("x", kind="advisory"):
            pass


async def test_a_store_may_bring_locks_of_its_own(plain_ms: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Server:
        """What an advisory lock looks like from here."""

        async def acquire(self, name: str, owner: str, ttl: int, data: str | None = None) -> int | None:
            said.append(f"take {name}")
            return 7 if said.count(f"take {name}") == 1 else None

        async def renew(self, *_: Any, **__: Any) -> bool:
            said.append("renew")
            return "renew" not in said[:-1]

        async def release(self, *_: Any) -> bool:
            said.append("release")
            return True

        async def find_holder(self, name: str) -> LockHolder | None:
            return LockHolder("somebody", 7, live=True)

    store = (await host_of(plain_ms).call(_store))[0]
    monkeypatch.setattr(store, "advisory", Server, raising=False)
    with pytest.raises(LockLost):
        async with plain_ms.lock("x", ttl="300ms", kind="advisory") as guard:
            assert guard.token == 7
            with pytest.raises(LockTaken, match="held by somebody"):
                async with plain_ms.lock("x", kind="advisory", wait=False):
                    pass
            await asyncio.Event().wait()
    assert [word for word in said if not word.startswith("take")] == ["renew", "renew"]


async def _store(runtime: Any) -> tuple[Any]:
    return (runtime.store,)


async def _take_away(ms: Mainspring, guard: Any) -> None:
    """What can only happen when a lease has ended: it is another's, for a moment."""
    lease = await row(ms, "lock:")

    async def take(runtime: Any) -> None:
        assert await runtime.store.release(lease.name, lease.owner, guard.token)
        taken = await runtime.store.lease(lease.name, "thief", 30_000)
        assert await runtime.store.release(lease.name, "thief", taken.epoch)

    await host_of(ms).call(take)


class _Cancelled:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, asyncio.CancelledError)

    __hash__ = None  # type: ignore[assignment]


def test_the_app_is_an_execution_guard() -> None:
    guard: ExecutionGuard = Mainspring("memory://")
    assert guard is not None
