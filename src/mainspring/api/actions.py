"""Helper of the routes that act on one schedule or execution, such as pause and cancel.

Requests to these routes may leave the body out. A request that is repeated with its `Idempotency-Key` acts only once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.context import Api, api_of
from mainspring.api.idempotency import with_idempotency_key
from mainspring.api.parsing import convert_object, parse_json_object, parse_query
from mainspring.api.schemas import NoQuery

T = TypeVar("T", bound=Struct)


async def run_action(request: Request, kind: type[T], action: Callable[[Api, T], Awaitable[Response]]) -> Response:
    """Parse the body of `request` as a struct of type `kind`, call `action(api, body)` and return its answer.

    A body that is left out counts as an empty object. If the request's idempotency key was used before, return the
    stored answer to the first request and do not call `action`. Raises: Refused for a wrong request, and (409) while
    the first request with the key is still being answered; what `action` raises.
    """
    api = api_of(request)
    parse_query(request, NoQuery)
    data = await api.body(request)
    body = convert_object(parse_json_object(request, data, optional=True), kind)
    return await with_idempotency_key(api.host, request, data, lambda: action(api, body))
