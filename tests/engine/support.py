"""What the tests of the engine share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mainspring import Mainspring, Retry, Run, RunNotSuccessful, State

WAIT = "20s"
ONCE = Retry(max_attempts=1)
START = "2026-03-02T08:00:00Z"  # a Monday

Make = Callable[..., Mainspring]


@asynccontextmanager
async def beside(app: Mainspring) -> AsyncIterator[Mainspring]:
    """The real engine on its own thread, beside the test."""
    async with app.running():
        yield app


async def failed(task: Any, *args: Any) -> Run:
    """The run of a call that does not succeed."""
    handle = await task.enqueue(*args)
    with pytest.raises(RunNotSuccessful):
        await handle.result(timeout=WAIT)
    run: Run = await handle.run()
    assert run.state is State.FAILED
    return run
