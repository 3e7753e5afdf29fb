"""Actions on one thing: a body that may be left out, and a deed that is done once for each `Idempotency-Key`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.base import Api, api_of
from mainspring.api.idempotency import once
from mainspring.api.reading import converted, json_object, query_of
from mainspring.api.schemas import NoQuery

T = TypeVar("T", bound=Struct)


async def acted(request: Request, kind: type[T], deed: Callable[[Api, T], Awaitable[Response]]) -> Response:
    """Read what is wanted, then do it, or give the answer again that it got before."""
    api = api_of(request)
    query_of(request, NoQuery)
    data = await api.body(request)
    wanted = converted(json_object(request, data, optional=True), kind)
    return await once(api.ms, request, data, lambda: deed(api, wanted))
