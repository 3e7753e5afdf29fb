"""A program to be tested, and how its tests are run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SHOP = """
    import asyncio, threading
    import pytest
    from mainspring import Context, Cron, Depends, Mainspring, Retry, Snooze

    ms = Mainspring("sqlite:///must-not-be-made.db")
    seen = []

    @ms.task(retry=Retry(max_attempts=3, initial="10s", jitter=0))
    def send(customer: str, copies: int = 1) -> int:
        seen.append(("send", customer, copies))
        follow.sync.enqueue(customer)
        return copies

    @ms.task(queue="mail")
    async def follow(customer: str, **more: int) -> str:
        seen.append(("follow", customer))
        return customer

    @ms.cron("30 2 * * *", tz="Europe/Berlin")
    async def nightly() -> None:
        seen.append("nightly")

    @pytest.fixture(autouse=True)
    def _used(mainspring):
        seen.clear()
        mainspring.use(ms)
        mainspring.travel_to("2026-03-28T22:00Z")
"""

Run = Callable[..., pytest.RunResult]
