"""The sync door: the same names, blocking, for Flask, Django and scripts; from any thread, also after a fork."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from mainspring.handle import RunHandle
from mainspring.model.errors import SyncOnLoop
from mainspring.model.instant import Duration
from mainspring.model.run import Run, State

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.task import BaseTask

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def block_on(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine to its end here; a thread that runs an event loop must await instead."""
    try:
        refuse_on_loop(instead)
    except SyncOnLoop:
        work.close()
        raise
    return asyncio.run(work)


def refuse_on_loop(instead: str) -> None:
    """An error on a thread that runs an event loop: a blocking call would stop it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SyncOnLoop(f"this thread runs an event loop, a blocking call would stop it; write: await {instead}")


class SyncHandle(Generic[R]):
    """A handle whose questions block."""

    def __init__(self, handle: RunHandle[R]) -> None:
        self._handle = handle
        self.id = handle.id
        self.created = handle.created

    def run(self) -> Run:
        return block_on(self._handle.run(), "handle.run()")

    def state(self) -> State:
        return block_on(self._handle.state(), "handle.state()")

    def result(self, timeout: Duration | None = None) -> R:
        return block_on(self._handle.result(timeout), "handle.result()")


class SyncTask(Generic[P, R]):
    """`send.sync.enqueue(…)`."""

    def __init__(self, task: BaseTask[P, R]) -> None:
        self._task = task

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, connection: Any, **kwargs: Any) -> SyncHandle[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> SyncHandle[R]:
        refuse_on_loop(instead := f"{self._task.name}.enqueue(…)")
        stored = self._task.enqueue_blocking(args, kwargs)
        return SyncHandle(stored or block_on(self._task.enqueue(*args, **kwargs), instead))

    def enqueue_many(self, items: Any, *, connection: Any = None) -> list[SyncHandle[R]]:
        refuse_on_loop(instead := f"{self._task.name}.enqueue_many(…)")
        stored = self._task.enqueue_many_blocking(items, connection)
        handles = block_on(self._task.enqueue_many(items), instead) if stored is None else stored
        return [SyncHandle(handle) for handle in handles]


class SyncDoor:
    """`ms.sync.<verb>(…)` for every coroutine verb of `ms`; `with ms.sync.lock(…)` for `async with ms.lock(…)`."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._app, name)
        if name in ("lock", "execution_lease"):
            return lambda *args, **kwargs: verb(*args, **kwargs).blocking()
        if not inspect.iscoroutinefunction(verb):
            raise AttributeError(f"Mainspring.sync has no {name!r}: call ms.{name} itself")

        def blocking(*args: Any, **kwargs: Any) -> Any:
            answer = block_on(verb(*args, **kwargs), f"ms.{name}(…)")
            return SyncHandle(answer) if isinstance(answer, RunHandle) else answer

        return blocking
