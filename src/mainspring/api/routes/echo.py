"""Echo agent: an HTTP agent that the service itself provides, so that a first schedule has something to call."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.context import api_of, json_response
from mainspring.api.schemas import EchoView


async def echo(request: Request) -> Response:
    """Answer 200 with the body of the request, and with what its headers say about the fire."""
    data = await api_of(request).body(request)
    headers = request.headers
    view = EchoView(
        echo=_decode(data),
        schedule_id=headers.get("x-schedule-id"),
        fire_time=headers.get("x-fire-time"),
        attempt=headers.get("x-attempt"),
    )
    return json_response(view)


def _decode(data: bytes) -> Any:
    """Return the JSON value that `data` holds; None for an empty body, and the text of a body that is not JSON."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
