"""How the service is, for everybody: a word, nothing about the inside."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.base import api_of, json_answer
from mainspring.api.schemas import HealthView
from mainspring.model.errors import StoreError
from mainspring.ports.store import Schedules


async def api_health(request: Request) -> Response:
    """200 while the store answers, else 503."""
    api = api_of(request)
    try:
        await api.ms.call(lambda runtime: runtime.commands.schedules(Schedules(id="-", limit=1)))
    except StoreError:
        return json_answer(HealthView(status="unhealthy"), 503)
    degraded = api.ms.health().status == "degraded"
    return json_answer(HealthView(status="degraded" if degraded else "healthy"))
