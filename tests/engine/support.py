"""What the tests of the engine share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mainspring import Mainspring

WAIT = "20s"
START = "2026-03-02T08:00:00Z"  # a Monday

Make = Callable[..., Mainspring]


@asynccontextmanager
async def beside(app: Mainspring) -> AsyncIterator[Mainspring]:
    """The real engine on its own thread, beside the test."""
    async with app.running():
        yield app
