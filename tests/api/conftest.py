"""A service in this process: the real app, memory below, requests without a socket; or a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from mainspring import Mainspring
from mainspring.api.app import build


@pytest.fixture
async def ms() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")

    @app.task
    async def send(customer: str, copies: int = 1) -> str:
        return f"{customer} {copies}"

    yield app
    await app.close()


@pytest.fixture
async def api(ms: Mainspring) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build(ms), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3000") as found:
        yield found
