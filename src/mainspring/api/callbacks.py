"""The callbacks of agents that answered 202: `POST /api/callbacks/{run_id}/{heartbeat|progress|complete|fail}`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.agents.callbacks import CallbackDenied, CallbackStale, Standing
from mainspring.agents.response import MAX_RETRY_AFTER
from mainspring.app import Mainspring
from mainspring.model.errors import StoreError, UnknownRun

#: The most a callback may bring; more is refused unread.
MAX_BODY = 128 * 1024


class Progress(msgspec.Struct, forbid_unknown_fields=True):
    """How far the work is: a fraction from 0 to 1, a text, or both."""

    fraction: float | None = None
    message: str = ""


class Failure(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Why the work failed; `retry: false` when another try is useless; `retryAfter` in seconds."""

    error: str
    retry: bool = True
    retry_after: float | None = None


class _Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        self.status, self.title, self.detail = status, title, detail


def routes(ms: Mainspring) -> list[Route]:
    """The four routes; the token of the attempt is their only key, so they need no other."""

    async def heartbeat(run_id: str, token: str, _: bytes, __: str) -> Standing:
        return await ms.call(lambda runtime: runtime.callbacks.heartbeat(run_id, token))

    async def progress(run_id: str, token: str, data: bytes, _: str) -> Standing:
        said = _read(data, Progress)
        if said.fraction is not None and not 0 <= said.fraction <= 1:
            raise _Refused(422, "Invalid input", "fraction: is not a number from 0 to 1")
        text = said.message if said.fraction is None else f"{said.fraction:.0%} {said.message}".strip()
        return await ms.call(lambda runtime: runtime.callbacks.progress(run_id, token, text))

    async def complete(run_id: str, token: str, data: bytes, content_type: str) -> Standing:
        return await ms.call(lambda runtime: runtime.callbacks.complete(run_id, token, data, content_type))

    async def fail(run_id: str, token: str, data: bytes, _: str) -> Standing:
        said = _read(data, Failure)
        wait = None if said.retry_after is None else min(MAX_RETRY_AFTER, max(0, int(said.retry_after * 1000)))
        return await ms.call(
            lambda runtime: runtime.callbacks.fail(run_id, token, said.error, retry=said.retry, retry_after=wait)
        )

    verbs = {"heartbeat": heartbeat, "progress": progress, "complete": complete, "fail": fail}
    return [
        Route(f"/api/callbacks/{{run_id}}/{name}", _endpoint(verb), methods=["POST"], name=f"callback_{name}")
        for name, verb in verbs.items()
    ]


def _endpoint(verb: Callable[[str, str, bytes, str], Awaitable[Standing]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            token = _token(request)
            data = await _body(request)
            content_type = request.headers.get("content-type", "")[:100]
            standing = await verb(request.path_params["run_id"], token, data, content_type)
        except CallbackDenied as error:
            return _problem(401, "Callback token refused", str(error), {"WWW-Authenticate": "Bearer"})
        except CallbackStale as error:
            return _problem(409, "The attempt is over", str(error))
        except UnknownRun as error:
            return _problem(404, "No such run", str(error))
        except StoreError:
            return _problem(503, "The store does not answer", "Try again in a moment", {"Retry-After": "1"})
        except _Refused as refused:
            return _problem(refused.status, refused.title, refused.detail)
        return Response(msgspec.json.encode(standing), media_type="application/json")

    return answer


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise CallbackDenied("send the value of X-Callback-Token as Authorization: Bearer …")
    return token.strip()


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MAX_BODY:
            raise _Refused(413, "Too large", f"a callback brings at most {MAX_BODY} bytes")
    return bytes(found)


def _read(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _Refused(422, "Invalid input", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _Refused(400, "Not JSON", "the body cannot be read as JSON") from None


def _problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    said = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return Response(msgspec.json.encode(said), status, headers, "application/problem+json")
