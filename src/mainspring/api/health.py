"""How the service is, for everybody: a word, nothing about the inside."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.base import Api, api_of, json_answer
from mainspring.api.schemas import HealthView
from mainspring.model.errors import StoreError
from mainspring.ports.store import Schedules


async def alive(request: Request) -> Response:
    """200 as long as the process answers."""
    return json_answer(HealthView(status="healthy"))


async def api_health(request: Request) -> Response:
    """200 while the store answers, else 503."""
    api = api_of(request)
    if not await _store_answers(api):
        return json_answer(HealthView(status="unhealthy"), 503)
    degraded = api.ms.health().status == "degraded"
    return json_answer(HealthView(status="degraded" if degraded else "healthy"))


async def ready(request: Request) -> Response:
    """200 while the store answers, the loops do their work and planning keeps up, else 503."""
    api = api_of(request)
    if not await _store_answers(api):
        return json_answer(HealthView(status="unhealthy"), 503)
    if api.ms.health().status == "degraded" or await _lags(api):
        return json_answer(HealthView(status="degraded"), 503)
    return json_answer(HealthView(status="healthy"))


async def _store_answers(api: Api) -> bool:
    try:
        await api.ms.call(lambda runtime: runtime.commands.schedules(Schedules(id="-", limit=1)))
    except StoreError:
        return False
    return True


async def _lags(api: Api) -> bool:
    """True when a schedule is due since longer than planning may be late."""
    asked = Schedules(due_before=api.ms.now() - api.max_lag, limit=1)
    return bool(await api.ms.call(lambda runtime: runtime.commands.schedules(asked)))
