"""Callbacks of agents that answered 202: `POST /api/callbacks/{run_id}/{heartbeat|progress|complete|fail}`.

A callback is authorized by the callback token of its attempt. It needs no API key, and no key replaces the token.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.agents.callbacks import CallbackDenied
from mainspring.agents.response import MAX_RETRY_AFTER_MS
from mainspring.api.context import api_of, json_response
from mainspring.api.parsing import convert_object, parse_json_object, read_body
from mainspring.api.schemas import FailureBody, ProgressBody
from mainspring.model.errors import UnknownRun

#: The largest body of a callback.
MAX_CALLBACK_BYTES = 128 * 1024
MAX_CONTENT_TYPE_CHARS = 100


async def callback_heartbeat(request: Request) -> Response:
    """Renew the lease of the attempt, because the agent is alive and still works."""
    run_id, token, _ = await _read(request)
    reply = await api_of(request).host.call(lambda runtime: runtime.callbacks.heartbeat(run_id, token))
    return json_response(reply)


async def callback_progress(request: Request) -> Response:
    """Renew the lease of the attempt, and store how far the work is, in place of any earlier progress."""
    run_id, token, data = await _read(request)
    body = convert_object(parse_json_object(request, data, optional=True, from_agent=True), ProgressBody)
    text = body.message if body.fraction is None else f"{body.fraction:.0%} {body.message}".strip()
    reply = await api_of(request).host.call(lambda runtime: runtime.callbacks.progress(run_id, token, text))
    return json_response(reply)


async def callback_complete(request: Request) -> Response:
    """End the execution as a success. The body, of any content type, becomes its response."""
    run_id, token, data = await _read(request)
    content_type = request.headers.get("content-type", "")[:MAX_CONTENT_TYPE_CHARS]
    reply = await api_of(request).host.call(
        lambda runtime: runtime.callbacks.complete(run_id, token, data, content_type)
    )
    return json_response(reply)


async def callback_fail(request: Request) -> Response:
    """End the attempt as a failure. The retry policy decides about another attempt; `retry: false` rules it out."""
    run_id, token, data = await _read(request)
    body = convert_object(parse_json_object(request, data, optional=True, from_agent=True), FailureBody)
    wait = None if body.retry_after is None else int(min(MAX_RETRY_AFTER_MS, max(0, body.retry_after * 1000)))
    reply = await api_of(request).host.call(
        lambda runtime: runtime.callbacks.fail(run_id, token, body.error, retry=body.retry, retry_after=wait)
    )
    return json_response(reply)


async def _read(request: Request) -> tuple[str, str, bytes]:
    """Return (id of the run, callback token, raw body) of a callback.

    Raises: CallbackDenied without a token; UnknownRun for an id that cannot exist; Refused for too large a body.
    """
    run_id: str = request.path_params["run_id"]
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise CallbackDenied("Send the value of X-Callback-Token as Authorization: Bearer …")
    if not run_id.isprintable():
        raise UnknownRun("no execution has this id")
    return run_id, token.strip(), await read_body(request, MAX_CALLBACK_BYTES)
