"""Mainsprings on every embedded store, closed after the test."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import Make

from mainspring import Mainspring
from servers import for_tests_redis
from servers.for_tests import fresh_url

#: The engine's tests on other stores: MAINSPRING_ENGINE_STORES=postgresql,valkey pytest tests/engine
STORES = os.environ.get("MAINSPRING_ENGINE_STORES", "memory,sqlite").split(",")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return fresh_url()
    if request.param in ("valkey", "redis"):
        return for_tests_redis.fresh_url(for_tests_redis.server_url(request.param))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[Mainspring] = []

    def build(**options: Any) -> Mainspring:
        made.append(Mainspring(url, **options))
        return made[-1]

    yield build
    for app in made:
        app.sync.close()


@pytest.fixture
def ms(make: Make) -> Mainspring:
    return make()


@pytest.fixture
def clocked(make: Make) -> Mainspring:
    ms = make()

    @ms.task
    async def report(customer: str = "nobody", copies: int = 1) -> str:
        return customer * copies

    return ms


#: A module whose tasks run in child processes.
PROGRAM = """
    import os, signal, sys, threading, time
    from dataclasses import dataclass
    from typing import Any
    from mainspring import Cancel, Context, Depends, Mainspring, Retry, Snooze

    ms = Mainspring("memory://", deps="deps", shutdown_timeout="5s")
    ONCE = Retry(max_attempts=1)

    @dataclass
    class Point:
        x: int
        y: int

    @ms.task(executor="process")
    def pid(point: Point) -> list[int]:
        return [os.getpid(), point.x + point.y]

    @ms.task(executor="process", name="renamed")
    def context(ctx: Context, n: int, extra: str = Depends(lambda: "extra")) -> list[Any]:
        return [ctx.run_id, ctx.attempt, ctx.deps, extra, n]

    @ms.task(executor="process", retry=ONCE)
    def fail(how: str) -> Any:
        if how == "raise":
            raise LookupError("in a child")
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "hard exit":
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "result":
            return object()
        return how

    @ms.task(executor="process", retry=ONCE, timeout="1500ms")
    def forever(mark: str) -> None:
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
        threading.Event().wait(60)

    @ms.task(executor="process")
    def loud(size: int) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.write("x" * size)
            stream.flush()
        return size

    @ms.task(executor="process", retry=ONCE, timeout="60s")
    def orphan(mark: str) -> None:
        if os.fork() == 0:  # a child of its own that holds on to every pipe
            while not os.path.exists(mark):
                time.sleep(0.01)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    @ms.task(executor="process")
    def answer(what: str) -> Any:
        return Cancel("not wanted") if what == "cancel" else Snooze("1h")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "child_program.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("child_program", None)
    module = importlib.import_module("child_program")
    yield module
    module.ms.sync.close()
    sys.modules.pop("child_program", None)


@pytest.fixture
async def plain_ms() -> AsyncIterator[Mainspring]:
    """On memory, stopped after the test."""
    app = Mainspring("memory://", shutdown_timeout="5s")
    yield app
    await app.close()
