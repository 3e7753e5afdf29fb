"""Who may ask: the Host allow-list, API keys, cross-site requests, the rate limit. Before every route.

Bound to loopback, the service answers this machine without a key, under its own names only. What reaches it under
another name or by a proxy needs a key, and so does everything on any other address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from mainspring.api.buckets import Buckets
from mainspring.config.settings import ServeSettings, is_loopback
from mainspring.keys import FRESH
from mainspring.model.errors import StoreError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mainspring.keys import KeyRing

log = logging.getLogger("mainspring.api")

#: Answer anybody, with nothing but a status.
PUBLIC = frozenset({"/health", "/ready", "/api/health"})
#: Bring a token of their own, which the route judges.
OWN_TOKEN = ("/api/callbacks/",)
#: Anything that says a proxy stands in between.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
_TITLES = {
    400: "The request is not valid",
    401: "A key is needed",
    403: "The request came from another site",
    421: "This is not the host that was asked for",
    429: "Too many requests",
    503: "The store cannot be reached",
}
_KINDS = {
    400: "invalid",
    401: "unauthorized",
    403: "cross-site",
    421: "misdirected",
    429: "rate-limited",
    503: "unavailable",
}


class Refusal(Struct, frozen=True):
    """Why a request goes no further."""

    status: int
    detail: str
    headers: Mapping[str, str] = {}


#: The same for every wrong token: which part was wrong is nobody's business.
UNAUTHORIZED = Refusal(
    401,
    "Send a valid API key as `Authorization: Bearer msk_…`. `mainspring key create` makes one",
    {"WWW-Authenticate": 'Bearer realm="mainspring"'},
)


class Access:
    """ASGI middleware; a request that passes carries `caller` in its state: a key's name, "local" or ""."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, keys: KeyRing, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._keys = keys
        self._buckets = Buckets(monotonic)
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no web sockets here
        state = scope.setdefault("state", {})
        headers = _headers(scope)
        state["request_id"] = _request_id(headers)
        answer = await self._judge(scope, headers)
        if isinstance(answer, Refusal):
            await _refuse(answer, state["request_id"], scope, send)
            return
        state["caller"] = answer
        if answer in ("", "local"):
            await self._app(scope, receive, send)
        else:
            await self._while_valid(_token(headers["authorization"]), scope, receive, send)

    async def _while_valid(self, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that takes long, such as an event stream, ends when its key does."""
        begun = ended = False

        async def sent(message: Message) -> None:
            nonlocal begun, ended
            begun = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def answered() -> None:
            await self._app(scope, receive, sent)

        answering = asyncio.create_task(answered())
        try:
            while not (await asyncio.wait([answering], timeout=FRESH / 1000))[0]:
                with contextlib.suppress(StoreError):
                    if await self._keys.judge(token) is None:
                        break
            else:
                await answering
                return
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait([answering])
        if begun and not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _judge(self, scope: Scope, headers: Mapping[str, str]) -> str | Refusal:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        found = _HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if found is None:
            return Refusal(400, "Send one Host header with a name or an address")
        host = found[1].strip("[]").lower().rstrip(".")
        path: str = scope["path"]
        if (refusal := self._wrong_host(host)) is not None:
            return refusal
        if path.startswith(OWN_TOKEN):
            return self._limited(_address(scope), path) or ""
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._by_key(authorization, scope, path)
        local = self._is_local(host, headers)
        if not local:
            return "" if path in PUBLIC else self._limited(_address(scope), path) or UNAUTHORIZED
        if scope["method"] not in _SAFE and _cross_site(headers, hosts[0].decode("latin-1")):
            return Refusal(403, "A page of another site may not do this. Send an API key, or no Origin header")
        return self._limited(_address(scope), path) or "local"

    def _wrong_host(self, host: str) -> Refusal | None:
        """On loopback a name of somebody else's is a trick: a page whose own name was made to mean this machine."""
        server = self.settings.server
        named = server.allow_hosts
        if is_loopback(host) or host == server.host.lower():
            return None
        if server.public_url is not None and host == (urlsplit(server.public_url).hostname or "").lower():
            return None
        if any(host == name.lower() or (name.startswith(".") and host.endswith(name.lower())) for name in named):
            return None
        if not server.on_loopback and not named:
            return None  # its names are not known here, and a key is needed anyway
        return Refusal(
            421, "This service does not answer to that name. server.allow_hosts in its configuration adds one"
        )

    def _is_local(self, host: str, headers: Mapping[str, str]) -> bool:
        """True when no key is needed."""
        server = self.settings.server
        if server.insecure_no_auth:
            return True
        if not server.on_loopback or server.require_key:
            return False
        return (is_loopback(host) or host == server.host.lower()) and not any(name in headers for name in _FORWARDED)

    async def _by_key(self, authorization: str, scope: Scope, path: str) -> str | Refusal:
        try:
            key = await self._keys.judge(_token(authorization))
        except StoreError:
            return Refusal(503, "Keys cannot be checked now; try again", {"Retry-After": "1"})
        if key is not None:
            return self._limited(f"key {key.id}", path) or key.name
        return "" if path in PUBLIC else self._limited(_address(scope), path) or UNAUTHORIZED

    def _limited(self, who: str, path: str) -> Refusal | None:
        limits = self.settings.limits
        rate = limits.requests_per_second
        if rate is None or path in PUBLIC:
            return None
        wait = self._buckets.take(who, rate, limits.burst or max(1, math.ceil(2 * rate)))
        if wait <= 0:
            return None
        seconds = str(max(1, math.ceil(wait)))
        return Refusal(429, f"The limit is {rate:g} requests a second; wait {seconds} s", {"Retry-After": seconds})


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _token(authorization: str) -> str:
    """What follows `Bearer`; nothing where another scheme is used."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return f"address {client[0]}" if client else "address"


def _request_id(headers: Mapping[str, str]) -> str:
    given = headers.get("x-request-id", "")
    return given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else f"req_{secrets.token_hex(6)}"


def _cross_site(headers: Mapping[str, str], host: str) -> bool:
    """A browser says where a request comes from; programs say nothing and are what this is for."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != host.lower()


async def _refuse(refusal: Refusal, request_id: str, scope: Scope, send: Send) -> None:
    body = msgspec.json.encode(
        {
            "type": f"/api/errors/{_KINDS[refusal.status]}",
            "title": _TITLES[refusal.status],
            "status": refusal.status,
            "detail": refusal.detail,
            "requestId": request_id,
            "errors": [],
        }
    )
    headers = {
        "content-type": "application/problem+json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "x-request-id": request_id,
        **{name.lower(): value for name, value in refusal.headers.items()},
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
