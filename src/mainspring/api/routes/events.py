"""Route of the event stream: the event log as server-sent events. After a disconnection, a client can continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mainspring.api.context import Api, api_of
from mainspring.api.event_view import event_view
from mainspring.api.parsing import parse_query
from mainspring.api.problems import Fault, Refused, invalid_request
from mainspring.api.routes.schedules import find_schedule
from mainspring.api.schemas import StreamQuery
from mainspring.model.errors import InvalidInput
from mainspring.model.event_names import resolve_type_names
from mainspring.model.events import Event
from mainspring.ports.log_cursor import LogCursor

#: Pause after a read of the log that found no event: at first the minimum, then longer by half after each further such
#: read, up to the maximum. After a read that found an event, the next one follows at once.
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 0.5
#: A silent stream gets a comment at this interval, so that proxies do not cut it off.
PING_SECONDS = 15.0
EVENT_STREAM = "text/event-stream"
#: The most events in one read of the log.
STREAM_READ_EVENTS = 500
#: A longer `Last-Event-ID` is refused.
MAX_POSITION_CHARS = 16_384


async def stream_events(request: Request) -> Response:
    """Stream the events of the namespace, each once: from now on, or all with `since=beginning`.

    With `Last-Event-ID`, the stream continues after that event. `types` and `schedule` restrict what is sent.
    """
    api = api_of(request)
    query = parse_query(request, StreamQuery)
    types = None if query.types is None else _parse_types(query.types)
    schedule_id = None if query.schedule is None else (await find_schedule(api, query.schedule)).id
    position = request.headers.get("last-event-id") or ("0" if query.since == "beginning" else None)
    if position is not None and len(position) > MAX_POSITION_CHARS:
        raise _invalid_position("is too long")
    try:
        cursor = await api.host.call(lambda runtime: runtime.commands.open_cursor(position))
    except InvalidInput as error:
        raise _invalid_position(error.problem) from None
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=EVENT_STREAM)
    caller: str = getattr(request.state, "caller", "")
    if reason := api.stream_slots.take(caller):
        raise Refused(503, "busy", reason, headers={"Retry-After": "5"})
    return StreamAnswer(
        _stream(api, request, cursor, types, schedule_id),
        lambda: api.stream_slots.give_back(caller),
        headers=headers,
        media_type=EVENT_STREAM,
    )


class StreamAnswer(StreamingResponse):
    """Answer that calls `on_end` when it has been sent or the client has left, even if `content` never began."""

    def __init__(self, content: AsyncIterator[bytes], on_end: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _invalid_position(detail: str) -> Refused:
    """Return the refusal of a `Last-Event-ID` that is no position in the log; `detail` says what is wrong with it."""
    return invalid_request(
        [Fault(detail, parameter="Last-Event-ID", suggestion="Send back an id of this stream, or none")]
    )


def _parse_types(text: str) -> frozenset[str]:
    """Return the event types named in `text`, the query parameter `types`. Raises: Refused for an unknown name."""
    try:
        return frozenset(resolve_type_names([name.strip() for name in text.split(",") if name.strip()]))
    except InvalidInput as error:
        raise invalid_request(
            [Fault(error.problem, parameter="types", suggestion=error.fix or msgspec.UNSET)]
        ) from None


async def _stream(
    api: Api, request: Request, cursor: LogCursor, types: frozenset[str] | None, schedule_id: str | None
) -> AsyncIterator[bytes]:
    """Yield the events after the cursor as server-sent events, until the client leaves or the app closes its streams.

    `types`: only events of these types; None: of any type. `schedule_id`: only events of this schedule and its runs;
    None: of any schedule.
    """
    loop = asyncio.get_running_loop()
    last_sent, wait = loop.time(), MIN_POLL_SECONDS
    yield b"retry: 1000\n: open\n\n"
    while not api.closing.is_set():
        found = await api.host.call(lambda _: cursor.read(STREAM_READ_EVENTS))
        if found:
            parts = [_encode(position, event) for position, event in found if _matches(api, event, types, schedule_id)]
            # The client's position advances even if the filter leaves no event.
            yield b"".join(parts) or f"id: {found[-1][0]}\n\n".encode()
            last_sent, wait = loop.time(), MIN_POLL_SECONDS
            continue
        if loop.time() - last_sent >= PING_SECONDS:
            yield b": ping\n\n"
            last_sent = loop.time()
        if await request.is_disconnected():
            return
        await pause(api, wait)
        wait = min(MAX_POLL_SECONDS, wait * 1.5)


async def pause(api: Api, seconds: float) -> None:
    """Wait for `seconds`, but at most until the app closes its event streams."""
    try:
        async with asyncio.timeout(seconds):
            await api.closing.wait()
    except TimeoutError:
        return


def _matches(api: Api, event: Event, types: frozenset[str] | None, schedule_id: str | None) -> bool:
    """Return True if an event is to be sent: it is in the app's namespace, of one of `types`, and of the schedule.

    `types` None: of any type. `schedule_id` None: of any schedule.
    """
    return (
        event.ns == api.ms.settings.namespace
        and (types is None or type(event).__name__ in types)
        and (schedule_id is None or event.schedule_id == schedule_id)
    )


def _encode(position: str, event: Event) -> bytes:
    """Return an event as a server-sent event. `position` becomes its id: a client continues after it."""
    kind = type(event).__name__
    return b"".join(
        (f"id: {position}\nevent: {kind}\ndata: ".encode(), msgspec.json.encode(event_view(event)), b"\n\n")
    )
