"""What route handlers share: the state of the API (`Api`), and helpers for JSON answers and for pages of a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.health_reporter import HealthReporter
from mainspring.api.parsing import read_body
from mainspring.api.stream_slots import StreamSlots
from mainspring.app.internals import host_of
from mainspring.config.settings import BODY_MARGIN_BYTES, HTTP_RETRY, ServeSettings
from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
#: A page of a list ends before it has more bytes than this.
MAX_PAGE_BYTES = 4 * 1024 * 1024


class Api:
    """State behind the routes: the app `ms`, the settings in force, the health reporter, the open event streams.

    `settings` None: the API is embedded in a program without `mainspring serve`, and defaults apply.
    """

    def __init__(self, ms: Mainspring, settings: ServeSettings | None = None) -> None:
        self.ms = ms
        self.host = host_of(ms)
        self.health = HealthReporter(ms, settings)
        #: Set before the server stops, and ends the event streams: the server waits until every answer has ended.
        self.closing = asyncio.Event()
        self.stream_slots = StreamSlots()
        self.adopt(settings)

    def adopt(self, settings: ServeSettings | None) -> None:
        """Use `settings` for requests from now on. `settings` None: use the defaults."""
        self.settings = settings
        self.health.adopt(settings)
        #: The retry policy of schedules that call an HTTP agent and have no policy of their own.
        self.http_retry: RetryPolicy = HTTP_RETRY if settings is None else settings.retry
        #: The shortest interval between two fires of a schedule; None: no limit.
        self.min_interval: Ms | None = None if settings is None else settings.limits.min_interval

    @property
    def body_limit(self) -> int:
        """Largest request body in bytes: the payload limit and a margin for the other fields."""
        return self.ms.settings.payload_limit + BODY_MARGIN_BYTES

    async def body(self, request: Request) -> bytes:
        """Return the raw body of a request. Raises: Refused, with 413 for a body larger than `body_limit`."""
        return await read_body(request, self.body_limit)


def api_of(request: Request) -> Api:
    """Return the API state of the ASGI app that received the request."""
    api: Api = request.app.state.api
    return api


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with `value` as JSON. Its Cache-Control header forbids caches to store it."""
    return Response(
        _encoder.encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json"
    )


def cut_page(
    request: Request, rows: Sequence[T], limit: int, key: Callable[[T], str]
) -> tuple[Sequence[T], dict[str, str]]:
    """Return the first `limit` of `rows`, and the headers of the answer: `Link` to the next page, if there is one.

    The caller has read up to `limit` + 1 rows: a row beyond `limit` means that there is a next page. `key(row)` returns
    the value for the parameter `cursor` that lets a page begin after this row.
    """
    if len(rows) <= limit:
        return rows, {}
    shown = rows[:limit]
    return shown, {"Link": _next_link(request, key(shown[-1]))}


def page_response(request: Request, views: Sequence[Any], keys: Sequence[str], headers: dict[str, str]) -> Response:
    """Return an answer with as many of the first `views` as fit into `MAX_PAGE_BYTES`, but at least one.

    `keys`: for each view the value of `cursor` that lets a page begin after it. `headers`: those of `cut_page`; the
    Link is replaced if views are left out. Why: a client that does not read its answer must not hold much memory.
    """
    parts: list[bytes] = []
    size = 0
    for view in views:
        part = _encoder.encode(view)
        size += len(part) + 1
        if parts and size > MAX_PAGE_BYTES:
            headers = {**headers, "Link": _next_link(request, keys[len(parts) - 1])}
            break
        parts.append(part)
    body = b"[" + b",".join(parts) + b"]"
    return Response(body, 200, {"Cache-Control": "no-store", **headers}, "application/json")


def _next_link(request: Request, cursor: str) -> str:
    """Return the value of a `Link` header to the page after `cursor`, with the other parameters of the request."""
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    query = urlencode([*rest, ("cursor", cursor)])
    return f'<{quote(request.url.path)}?{query}>; rel="next"'
