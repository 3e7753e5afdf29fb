"""What every handler needs: the app it serves, settings with defaults, JSON answers, pages with links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.reading import ROOM, read_body
from mainspring.config.settings import HTTP_RETRY
from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy

if TYPE_CHECKING:
    from mainspring.app import Mainspring

T = TypeVar("T")
_encoder = msgspec.json.Encoder()

MAX_STREAMS = 100
#: So late planning may be, in ms, while the service counts as ready.
MAX_LAG = 30_000


class Api:
    """The service behind the routes."""

    def __init__(self, ms: Mainspring, settings: Any = None) -> None:
        self.ms = ms
        #: Set when the service is about to stop: streams end, so that the server can.
        self.closing = asyncio.Event()
        self.streams = 0
        self.adopt(settings)

    def adopt(self, settings: Any) -> None:
        """Go on with other settings."""
        self.settings = settings
        self.http_retry: RetryPolicy = getattr(settings, "retry", None) or HTTP_RETRY
        self.min_interval: Ms | None = getattr(getattr(settings, "limits", None), "min_interval", None)
        self.max_lag: Ms = getattr(getattr(settings, "scheduler", None), "max_lag", None) or MAX_LAG
        self.max_streams: int = getattr(getattr(settings, "limits", None), "streams", None) or MAX_STREAMS

    @property
    def body_limit(self) -> int:
        """The largest body that is read: a payload and what goes around it."""
        return self.ms.settings.payload_limit + ROOM

    async def body(self, request: Request) -> bytes:
        return await read_body(request, self.body_limit)


def api_of(request: Request) -> Api:
    """The service that this request came to."""
    api: Api = request.app.state.api
    return api


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; nothing of it belongs into a cache."""
    return Response(
        _encoder.encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json"
    )


def page(
    request: Request, rows: Sequence[T], limit: int, key: Callable[[T], str]
) -> tuple[Sequence[T], dict[str, str]]:
    """The rows of one page, of which one more was asked for, and the Link to the next if there is one."""
    if len(rows) <= limit:
        return rows, {}
    shown = rows[:limit]
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    query = urlencode([*rest, ("cursor", key(shown[-1]))])
    return shown, {"Link": f'<{request.url.path}?{query}>; rel="next"'}
