"""A held lock: acquired, renewed and released on the engine loop, even while its caller's event loop is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from mainspring.engine.locks.lease_term import LeaseTerm, TermData
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms

log = logging.getLogger("mainspring.engine")

#: Seconds between two attempts to acquire a lock that another process holds: at first, and at most.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.01, 0.25


class LocalWaitQueues:
    """Queues of callers in this process that want a lock, by its name. Only the first caller of a queue asks the store.

    Thread: engine loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, name: str, timeout: float | None) -> None:
        """Queue the caller for `name` and return when it is the first. It stays the first until it calls `leave`.

        Raises: TimeoutError after `timeout` seconds; with None, wait without limit.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # an earlier engine loop, or that of the process that forked this one
            self._loop, self._queues = loop, {}
        queue = self._queues.get(name)
        if queue is None:
            self._queues[name] = deque()
            return
        if timeout == 0:
            raise TimeoutError
        turn: asyncio.Future[None] = loop.create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave(name)  # the turn came at the moment of the cancellation
            else:
                queue.remove(turn)
            raise

    def leave(self, name: str) -> None:
        """Remove the caller, which must be the first in the queue for `name`, so that the next caller is the first."""
        if asyncio.get_running_loop() is not self._loop:
            return
        queue = self._queues.get(name)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._queues.pop(name, None)


class HeldLock:
    """One acquisition of a lock: acquires it, renews it until `release`, and reports its loss.

    Thread: engine loop. Attributes and `distrust_reason` may be read on any thread.
    """

    def __init__(
        self, term: LeaseTerm, queues: LocalWaitQueues, rng: random.Random, on_lost: Callable[[str], None]
    ) -> None:
        """Make a lock that is not acquired yet. `term`: its lease.

        `on_lost` is called once, with the reason, when the lock is lost. `queues`: the local queues of this process,
        which all of its locks share. `rng` varies the pauses between two requests, so that processes that wait for one
        lock do not all ask the store at the same time.
        """
        self.term = term
        self._queues = queues
        self._rng = rng
        self._on_lost = on_lost
        self._renewing: asyncio.Task[None] | None = None
        #: The task that releases the lock in the background, kept here so that it is not garbage-collected.
        self._cleanup: asyncio.Task[Any] | None = None
        self._released = asyncio.Event()
        self._is_queued = False
        self._is_abandoned = False
        #: The fencing token; 0 before the lock was acquired.
        self.token = 0
        #: Why the lock was lost; None if it was not.
        self.lost_reason: str | None = None
        self._pid = os.getpid()

    @property
    def distrust_reason(self) -> str | None:
        """Why the lock cannot be relied on at this moment; None while it can."""
        if self._pid != os.getpid():
            return "it belongs to the process that forked this one"
        if self.lost_reason is None and not self.term.trusted:
            return "it could not be renewed in time"
        return self.lost_reason

    # ── acquiring ──────────────────────────────────────────────────────────

    async def acquire(self, timeout: float | None) -> bool:
        """Acquire the lock, and renew it from then on. Return False if it does not become free in `timeout` seconds.

        With `timeout` None, wait without limit. Raises: StoreError.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        try:
            await self._queues.enter(self.term.name, timeout)
        except TimeoutError:
            return False
        self._is_queued = True
        is_held = False
        try:
            is_held = await self._acquire_before(deadline)
        finally:
            if not is_held:
                self._leave_queue()
        if is_held:
            self.token = self.term.token or 0
            self._renewing = loop.create_task(self._renew_repeatedly(), name=f"mainspring-{self.term.name}")
        return is_held

    async def _acquire_before(self, deadline: float | None) -> bool:
        """Ask the store for the lock, at growing intervals. Return True once it is given, False after `deadline`.

        `deadline`: in the event loop's time; None: no limit. Raises: StoreError.
        """
        loop = asyncio.get_running_loop()
        delay = MIN_RETRY_SECONDS
        while not await self._acquire_once():
            left = MAX_RETRY_SECONDS if deadline is None else deadline - loop.time()
            if left < 0.001:
                return False
            await asyncio.sleep(min(delay * self._rng.uniform(0.5, 1.0), left))
            delay = min(delay * 2, MAX_RETRY_SECONDS, self.term.ttl / 3000)
        return True

    async def _acquire_once(self) -> bool:
        """Ask the store for the lock once. Return True if it was given. Raises: StoreError.

        If `abandon` was called meanwhile, release the lock and return False. If the caller is cancelled before the
        answer, or the request fails, a task releases the lock, because the store may have given it.
        """
        acquiring = asyncio.ensure_future(self.term.acquire())
        try:
            is_held = await asyncio.shield(acquiring)
        except (Exception, asyncio.CancelledError):
            self._cleanup = asyncio.ensure_future(self._release_unanswered(acquiring))
            raise
        if is_held and self._is_abandoned:
            await self.term.release_unanswered()
            return False
        return is_held

    async def _release_unanswered(self, acquiring: asyncio.Future[bool]) -> None:
        """Wait until the request `acquiring` has ended, then release the lock, because the store may have given it."""
        await asyncio.wait([acquiring])
        if not acquiring.cancelled():
            acquiring.exception()
        await self.term.release_unanswered()

    def abandon(self) -> None:
        """Release the lock soon, or when it is acquired, because its caller was cancelled and cannot release it."""
        self._is_abandoned = True
        if self._renewing is not None:
            self._cleanup = asyncio.ensure_future(self.release())

    # ── renewing ───────────────────────────────────────────────────────────

    async def _renew_repeatedly(self) -> None:
        """Renew the lock every third of its TTL, until it is released or lost. Runs in a task of its own.

        While the store fails, try again as long as the term is trusted. A loss is reported with `_lose`.
        """
        term = self.term
        pause = term.ttl / 3000
        while not await self._is_released_within(min(pause, term.trust_left)):
            pause = term.ttl / 3000
            if not term.trusted:
                return self._lose("it could not be renewed in time")
            try:
                async with asyncio.timeout(term.trust_left):
                    if not await term.renew():
                        return self._lose("its lease ended, and another owner may hold it")
            except TimeoutError:
                return self._lose("the store did not answer in time")
            except Exception as error:  # of whatever kind: the trust deadline decides
                log.warning("lock %s: it could not be renewed yet, trying again: %s", term.name, error)
                pause = term.ttl / 15_000
        return None

    async def _is_released_within(self, seconds: float) -> bool:
        """Wait for the release of the lock, for at most `seconds`. Return True if it is released."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._released.wait()
        return self._released.is_set()

    def _lose(self, reason: str) -> None:
        """Set `lost_reason`, log that the lock is lost, call `on_lost`, and give up the place in the local queue."""
        self.lost_reason = reason
        log.error("lock %s (token %d) lost: %s", self.term.name, self.token, reason)
        self._leave_queue()
        self._on_lost(reason)

    def _leave_queue(self) -> None:
        """Give up the place in the local queue, if the lock has one, for the next caller in this process."""
        if self._is_queued:
            self._is_queued = False
            self._queues.leave(self.term.name)

    # ── releasing ──────────────────────────────────────────────────────────

    async def release(self, data: TermData | None = None, keep: Ms = 0) -> bool:
        """Release the lock, or with `data` and `keep` leave it held for `keep` milliseconds more, with that data.

        Return True if the lock was held without a gap until now. If the store fails, log the error, because the lock
        ends by itself, and return True if the lock could be relied on before. In a child of the process that acquired
        the lock, do nothing and return False.
        """
        if self._pid != os.getpid():
            return False
        was_trusted = self.distrust_reason is None
        await self._stop_renewing()
        try:
            if self.token and self.term.token is None:  # the renewal was refused
                return False
            if data is not None and keep:
                return await self.term.renew(ttl=keep, data=data)
            return await self.term.release()
        except StoreError as error:
            log.warning(
                "lock %s: the store failed at its release; it ends by itself within %d ms: %s",
                self.term.name,
                self.term.ttl,
                error,
            )
            return was_trusted
        finally:
            self._leave_queue()

    async def _stop_renewing(self) -> None:
        """End the task that renews the lock. Wait for a renewal under way: it must not follow the release."""
        task, self._renewing = self._renewing, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            self._released.set()
            await asyncio.wait([task])
