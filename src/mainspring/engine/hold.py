"""A lock that is held: waited for, renewed and let go on the engine's loop, whatever the block's own loop does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from mainspring.engine.term import Said, Term
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms

log = logging.getLogger("mainspring.engine")

#: Seconds between two looks at a lock that another process holds: first, and at most.
SOON, LATE = 0.01, 0.25


class Lines:
    """Who waits for which name in this process, in order: only the first of a line asks the store."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, name: str, patience: float | None) -> None:
        """Return when it is our turn; TimeoutError after so many seconds."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the engine's loop of another life, or of the process that forked this one
            self._loop, self._lines = loop, {}
        line = self._lines.get(name)
        if line is None:
            self._lines[name] = deque()
            return
        if patience == 0:
            raise TimeoutError
        place: asyncio.Future[None] = loop.create_future()
        line.append(place)
        try:
            async with asyncio.timeout(patience):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave(name)  # our turn came as we left
            else:
                line.remove(place)
            raise

    def leave(self, name: str) -> None:
        """The next one, please."""
        if asyncio.get_running_loop() is not self._loop:
            return
        line = self._lines.get(name)
        while line:
            place = line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._lines.pop(name, None)


class Hold:
    """One acquisition, used on the engine's loop. `lost` is called there, once, when it can be relied on no longer."""

    def __init__(self, term: Term, lines: Lines, rng: random.Random, lost: Callable[[str], None]) -> None:
        self.term = term
        self._lines = lines
        self._rng = rng
        self._lost = lost
        self._keeping: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[Any] | None = None
        self._over = asyncio.Event()
        self._in_line = False
        self._given_up = False
        self.token = 0
        self.why: str | None = None
        self._pid = os.getpid()

    @property
    def doubt(self) -> str | None:
        """Why the lock cannot be relied on at this very moment; None while it can."""
        if self._pid != os.getpid():
            return "it belongs to the process that forked this one"
        if self.why is None and not self.term.trusted:
            return "it could not be renewed in time"
        return self.why

    # ── getting it ─────────────────────────────────────────────────────────

    async def acquire(self, patience: float | None) -> bool:
        """Wait up to so many seconds (None: as long as it takes); False when somebody else has it."""
        loop = asyncio.get_running_loop()
        deadline = None if patience is None else loop.time() + patience
        try:
            await self._lines.enter(self.term.name, patience)
        except TimeoutError:
            return False
        self._in_line = True
        got = False
        try:
            got = await self._ask_until(deadline)
        finally:
            if not got:
                self._step_aside()
        if got:
            self.token = self.term.token or 0
            self._keeping = loop.create_task(self._keep(), name=f"mainspring-{self.term.name}")
        return got

    async def _ask_until(self, deadline: float | None) -> bool:
        loop = asyncio.get_running_loop()
        delay = SOON
        while not await self._take():
            left = LATE if deadline is None else deadline - loop.time()
            if left < 0.001:
                return False
            await asyncio.sleep(min(delay * self._rng.uniform(0.5, 1.0), left))
            delay = min(delay * 2, LATE, self.term.ttl / 3000)
        return True

    async def _take(self) -> bool:
        """Ask once; what was asked and not heard of is given back."""
        asking = asyncio.ensure_future(self.term.take())
        try:
            got = await asyncio.shield(asking)
        except (Exception, asyncio.CancelledError):
            self._tidying = asyncio.ensure_future(self._forget(asking))
            raise
        if got and self._given_up:
            await self.term.forget()
            return False
        return got

    async def _forget(self, asking: asyncio.Future[bool]) -> None:
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.exception()
        await self.term.forget()

    def give_up(self) -> None:
        """Nobody waits for it any more; if it was got meanwhile, let it go."""
        self._given_up = True
        if self._keeping is not None:
            self._tidying = asyncio.ensure_future(self.let_go())

    # ── keeping it ─────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        """Renew every third of the TTL; a store that fails is asked again while the term can be relied on."""
        term = self.term
        pause = term.ttl / 3000
        while not await self._over_within(min(pause, term.trust_left)):
            pause = term.ttl / 3000
            if not term.trusted:
                return self._lose("it could not be renewed in time")
            try:
                async with asyncio.timeout(term.trust_left):
                    if not await term.renew():
                        return self._lose("its lease ended, it may be another's")
            except TimeoutError:
                return self._lose("the store did not answer in time")
            except Exception as error:  # whatever it is, the clock decides
                log.warning("lock %s: not renewed, trying again: %s", term.name, error)
                pause = term.ttl / 15_000
        return None

    async def _over_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()

    def _lose(self, why: str) -> None:
        self.why = why
        log.error("lock %s (token %d) lost: %s", self.term.name, self.token, why)
        self._step_aside()
        self._lost(why)

    def _step_aside(self) -> None:
        if self._in_line:
            self._in_line = False
            self._lines.leave(self.term.name)

    # ── letting it go ──────────────────────────────────────────────────────

    async def let_go(self, said: Said | None = None, keep: Ms = 0) -> bool:
        """Release it, or keep it for a while with a last word; False unless it was ours to the end."""
        if self._pid != os.getpid():
            return False
        sure = self.doubt is None
        await self._stop_keeping()
        try:
            if self.token and self.term.token is None:  # the renewal was refused
                return False
            if said is not None and keep:
                return await self.term.renew(ttl=keep, said=said)
            return await self.term.release()
        except StoreError as error:
            log.warning(
                "lock %s: not released, it ends by itself within %d ms: %s", self.term.name, self.term.ttl, error
            )
            return sure
        finally:
            self._step_aside()

    async def _stop_keeping(self) -> None:
        """Let a renewal under way end first: it must not come to the store after the last word."""
        task, self._keeping = self._keeping, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            self._over.set()
            await asyncio.wait([task])
