"""Locks under the test kit: in handlers of every kind, from plain and from async tests."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import LockTaken, Mainspring


def furnished(mainspring: Any) -> tuple[Mainspring, list[int]]:
    app, tokens = Mainspring("memory://"), []
    mainspring.use(app)

    @app.task
    def blocking() -> None:
        with app.sync.lock("x") as guard:
            tokens.append(guard.token)
            with pytest.raises(LockTaken), app.sync.lock("x", wait=False):
                pass

    @app.task
    async def awaiting() -> None:
        async with app.lock("x") as guard:
            tokens.append(guard.token)

    return app, tokens


def test_from_a_plain_test(mainspring: Any) -> None:
    app, tokens = furnished(mainspring)
    for name in ("blocking", "awaiting", "blocking"):
        app.tasks[name].sync.enqueue()
        mainspring.run_due()
    with app.sync.lock("x") as guard:
        guard.check()
        tokens.append(guard.token)
    assert tokens == [1, 2, 3, 4]


async def test_from_an_async_test(mainspring: Any) -> None:
    app, tokens = furnished(mainspring)
    for name in ("blocking", "awaiting", "blocking"):
        await app.tasks[name].enqueue()
        await mainspring.run_due()
    async with app.lock("x") as guard:
        tokens.append(guard.token)
    assert tokens == [1, 2, 3, 4]
