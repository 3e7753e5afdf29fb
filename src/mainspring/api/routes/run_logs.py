"""Routes of an execution's log: read its lines, or follow them as server-sent events until the execution ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.context import Api, api_of, json_response
from mainspring.api.parsing import parse_query
from mainspring.api.problems import Fault, Refused, invalid_request
from mainspring.api.routes.events import EVENT_STREAM, PING_SECONDS, StreamAnswer, pause
from mainspring.api.routes.executions import find_execution
from mainspring.api.schemas import LogQuery, LogStreamQuery
from mainspring.api.views import execution_view, log_line_view
from mainspring.engine.work.log_writer import FLUSH_SECONDS
from mainspring.model.run import ENDED

#: Seconds between two reads of a log that is followed.
POLL_SECONDS = 0.5
#: Seconds for which a log is read on after its execution has ended: another process may not have stored its last lines.
LAST_LINES_SECONDS = 2 * FLUSH_SECONDS
#: The most lines in one read of a log that is followed.
STREAM_READ_LINES = 1_000


async def read_logs(request: Request) -> Response:
    """Read the lines of an execution's log, oldest first, in pages of `limit`.

    `attempt`: only lines of this attempt. `after`: only lines with a greater number, to read on.
    """
    api = api_of(request)
    query = parse_query(request, LogQuery)
    run = await find_execution(api, request)
    lines = await api.ms.logs(run.id, attempt=query.attempt, after=query.after, limit=query.limit + 1)
    shown = lines[: query.limit]
    headers = {}
    if len(lines) > query.limit:
        url = request.url.include_query_params(after=shown[-1].number)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return json_response([log_line_view(line) for line in shown], headers=headers)


async def stream_logs(request: Request) -> Response:
    """Stream the lines of an execution's log, from the first on, until the execution has ended.

    Each line is an event `line` whose id is the line's number; with `Last-Event-ID`, the stream continues after that
    line. The last event is `end`, with the execution's status. `attempt`: only lines of this attempt.
    """
    api = api_of(request)
    query = parse_query(request, LogStreamQuery)
    run = await find_execution(api, request)
    after = _parse_position(request.headers.get("last-event-id"))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=EVENT_STREAM)
    caller: str = getattr(request.state, "caller", "")
    if reason := api.stream_slots.take(caller):
        raise Refused(503, "busy", reason, headers={"Retry-After": "5"})
    return StreamAnswer(
        _stream(api, request, run.id, query.attempt, after),
        lambda: api.stream_slots.give_back(caller),
        headers=headers,
        media_type=EVENT_STREAM,
    )


def _parse_position(text: str | None) -> int | None:
    """Return the number in the header `Last-Event-ID`; None if it is missing. Raises: Refused if it is no number."""
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise invalid_request(
            [
                Fault(
                    "is not the number of a line",
                    parameter="Last-Event-ID",
                    suggestion="Send back an id of this stream, or none",
                )
            ]
        )
    return int(text)


async def _stream(
    api: Api, request: Request, run_id: str, attempt: int | None, after: int | None
) -> AsyncIterator[bytes]:
    """Yield the lines of a run's log as server-sent events until the run has ended, and then the event `end`.

    Yield no `end` if the client leaves or the app closes its streams.
    """
    loop = asyncio.get_running_loop()
    last_sent, ended_at = loop.time(), 0.0
    yield b"retry: 1000\n: open\n\n"
    while not api.closing.is_set():
        run = await find_execution(api, request)  # before the lines, so that no line of an ended run is missed
        lines = await api.ms.logs(run_id, attempt=attempt, after=after, limit=STREAM_READ_LINES)
        if lines:
            after = lines[-1].number
            yield b"".join(_encode(str(line.number), "line", log_line_view(line)) for line in lines)
            last_sent = loop.time()
            if len(lines) == STREAM_READ_LINES:
                continue
        if run.state in ENDED:
            ended_at = ended_at or loop.time()
            if loop.time() - ended_at >= LAST_LINES_SECONDS:
                yield _encode("" if after is None else str(after), "end", {"status": execution_view(run).status})
                return
        else:
            ended_at = 0.0
        if loop.time() - last_sent >= PING_SECONDS:
            yield b": ping\n\n"
            last_sent = loop.time()
        if await request.is_disconnected():
            return
        await pause(api, POLL_SECONDS)


def _encode(position: str, kind: str, data: object) -> bytes:
    """Return a server-sent event. `position` becomes its id; '': it has none."""
    head = f"id: {position}\n" if position else ""
    return f"{head}event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
