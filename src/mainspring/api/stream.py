"""Events as they happen: server-sent events that go on where a client was cut off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mainspring.api.base import Api, api_of
from mainspring.api.problems import Fault, Refused, faulty
from mainspring.api.reading import query_of
from mainspring.api.schedules import found_schedule
from mainspring.api.schemas import StreamQuery
from mainspring.model.errors import InvalidInput
from mainspring.model.events import Event, encode_data, type_names
from mainspring.model.instant import isoformat
from mainspring.ports.following import Follower

#: Seconds between two looks: at once while events come, then slower.
SOON, LATER = 0.05, 0.5
HEARTBEAT = 15.0
BATCH = 500
MAX_PLACE = 16_384


async def stream_events(request: Request) -> Response:
    """The log from now on, from its beginning, or from `Last-Event-ID` on; each event once."""
    api = api_of(request)
    query = query_of(request, StreamQuery)
    types = None if query.types is None else _types(query.types)
    schedule_id = None if query.schedule is None else (await found_schedule(api, query.schedule)).id
    place = request.headers.get("last-event-id") or ("0" if query.since == "beginning" else None)
    if place is not None and len(place) > MAX_PLACE:
        raise _no_place("is too long")
    try:
        follower = await api.ms.call(lambda runtime: runtime.commands.follower(place))
    except InvalidInput as error:
        raise _no_place(error.problem) from None
    if api.streams >= api.max_streams:
        raise Refused(503, "busy", f"{api.streams} event streams are open already", headers={"Retry-After": "5"})
    return StreamingResponse(
        _stream(api, request, follower, types, schedule_id),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


def _no_place(detail: str) -> Refused:
    return faulty([Fault(detail, parameter="Last-Event-ID", suggestion="Send back an id of this stream, or none")])


def _types(text: str) -> frozenset[str]:
    try:
        return frozenset(type_names([name.strip() for name in text.split(",") if name.strip()]))
    except InvalidInput as error:
        raise faulty([Fault(error.problem, parameter="types", suggestion=error.fix or msgspec.UNSET)]) from None


async def _stream(
    api: Api, request: Request, follower: Follower, types: frozenset[str] | None, schedule_id: str | None
) -> AsyncIterator[bytes]:
    api.streams += 1
    loop = asyncio.get_running_loop()
    said, pause = loop.time(), SOON
    try:
        yield b"retry: 1000\n: open\n\n"
        while not api.closing.is_set():
            steps = await api.ms.call(lambda _: follower.steps(BATCH))
            if steps:
                parts = [_block(place, event) for place, event in steps if _wanted(api, event, types, schedule_id)]
                # The place moves on although nothing of it is shown.
                yield b"".join(parts) or f"id: {steps[-1][0]}\n\n".encode()
                said, pause = loop.time(), SOON
                continue
            if loop.time() - said >= HEARTBEAT:
                yield b": ping\n\n"
                said = loop.time()
            if await request.is_disconnected():
                return
            await _sleep(api, pause)
            pause = min(LATER, pause * 1.5)
    finally:
        api.streams -= 1


async def _sleep(api: Api, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await api.closing.wait()
    except TimeoutError:
        return


def _wanted(api: Api, event: Event, types: frozenset[str] | None, schedule_id: str | None) -> bool:
    return (
        event.ns == api.ms.settings.namespace
        and (types is None or type(event).__name__ in types)
        and (schedule_id is None or event.schedule_id == schedule_id)
    )


def _block(place: str, event: Event) -> bytes:
    kind = type(event).__name__
    return b"".join((f"id: {place}\nevent: {kind}\ndata: ".encode(), msgspec.json.encode(event_view(event)), b"\n\n"))


def event_view(event: Event) -> dict[str, Any]:
    """An event for other programs; `data` is what it adds, with instants in milliseconds since 1970."""
    own = encode_data(event)
    view = {
        "seq": event.seq,
        "type": type(event).__name__,
        "at": isoformat(event.at),
        "scheduleId": event.schedule_id,
        "executionId": event.run_id,
        "attempt": event.attempt,
        "instance": event.owner,
        "actor": event.actor,
    }
    return view | {"data": {} if own is None else _camel(msgspec.json.decode(own))}


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub(r"_(\w)", lambda found: found[1].upper(), key): _camel(item) for key, item in value.items()}
    return [_camel(item) for item in value] if isinstance(value, list) else value
