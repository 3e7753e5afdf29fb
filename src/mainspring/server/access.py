"""Access control: pass or refuse each request before any route, by its Host header, API key, origin and rate.

While the service is bound to loopback, a request needs no key if its Host header names this machine and no proxy sent
it. Every other request needs a key, except on the routes of `PUBLIC` and `OWN_TOKEN`.
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

from mainspring.config.settings import ServeSettings, is_loopback
from mainspring.model.errors import StoreError
from mainspring.server.rate_limit import RateLimit
from mainspring.service.api_keys import KEY_CACHE_MS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mainspring.service.api_keys import KeyRing

log = logging.getLogger("mainspring.api")

#: Paths that need no key. `api/routes/health.py` leaves details out of the answer to a caller without one.
PUBLIC = frozenset({"/health", "/ready", "/api/health"})
#: Prefixes of paths that need no key, because their routes check a token of their own.
OWN_TOKEN = ("/api/callbacks/",)
#: Headers that a proxy adds: a request with one of them may come from another machine.
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
#: Methods that change nothing: pages of other sites may use them.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: A Host header: an IPv6 address in brackets, or a name or IPv4 address; then a port, if any.
_HOST_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
#: Status of a refusal → `title` of the problem document.
_TITLES = {
    400: "The request is not valid",
    401: "A key is needed",
    403: "The request comes from another site",
    421: "The service does not answer to this host name",
    429: "Too many requests",
    503: "The store cannot be reached",
}
#: Status of a refusal → end of the URI in `type` of the problem document.
_KINDS = {
    400: "invalid",
    401: "unauthorized",
    403: "cross-site",
    421: "misdirected",
    429: "rate-limited",
    503: "unavailable",
}


class Refusal(Struct, frozen=True):
    """Answer to a request that may not pass: status, `detail` of the problem document, further headers."""

    status: int
    detail: str
    headers: Mapping[str, str] = {}


#: Answer to every request without a valid key. Malformed, unknown, expired and revoked keys get an equal answer: a
#: difference would help to guess keys.
UNAUTHORIZED = Refusal(
    401,
    "Send a valid API key as `Authorization: Bearer msk_…`. `mainspring key create` makes one",
    {"WWW-Authenticate": 'Bearer realm="mainspring"'},
)


class Access:
    """ASGI middleware that passes a request on to `app`, or answers it with a refusal.

    Every request gets a `request_id` in its state. A request that passes also gets a `caller`: the name of its key,
    "local" for a request that needs no key, or "" for a request without a key on a route of `PUBLIC` or `OWN_TOKEN`.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, keys: KeyRing, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._keys = keys
        self._rate_limit = RateLimit(monotonic)
        #: The settings in force; the service replaces them when the configuration is reloaded.
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # web sockets are not served
        state = scope.setdefault("state", {})
        headers = _headers(scope)
        state["request_id"] = _request_id(headers)
        answer = await self._check(scope, headers)
        if isinstance(answer, Refusal):
            await _refuse(answer, state["request_id"], scope, send)
            return
        state["caller"] = answer
        if answer in ("", "local"):
            await self._app(scope, receive, send)
        else:
            await self._run_while_valid(_token(headers["authorization"]), scope, receive, send)

    async def _run_while_valid(self, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and end its answer when the key in `token` is revoked or expires.

        Why: an answer such as an event stream may last longer than its key. The key is checked every `KEY_CACHE_MS`;
        while the store cannot be reached, the answer goes on.
        """
        started = ended = False

        async def send_noted(message: Message) -> None:
            nonlocal started, ended
            started = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def answer() -> None:
            await self._app(scope, receive, send_noted)

        answering = asyncio.create_task(answer())
        try:
            while not (await asyncio.wait([answering], timeout=KEY_CACHE_MS / 1000))[0]:
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
        if started and not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _check(self, scope: Scope, headers: Mapping[str, str]) -> str | Refusal:
        """Return the `caller` of a request that may pass (see the class), else the refusal."""
        host_header = _host_header(scope)
        if host_header is None:
            return Refusal(400, "Send one Host header with a name or an address")
        host = _host_name(host_header)
        if not self._is_served(host):
            return Refusal(421, "The service does not answer to this host name. Add it to server.allow_hosts")
        path: str = scope["path"]
        if path.startswith(OWN_TOKEN):
            return self._limited(_address(scope), path) or ""
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._check_key(authorization, scope, path)
        if not self._is_local(host, headers):
            return self._without_key(scope, path)
        if scope["method"] not in _SAFE_METHODS and _cross_site(headers, host_header):
            return Refusal(403, "Pages of other sites may only read. Send an API key, or no Origin header")
        return self._limited(_address(scope), path) or "local"

    def _without_key(self, scope: Scope, path: str) -> str | Refusal:
        """Return "" for a route that needs no key, else the refusal of a request without a valid key."""
        return "" if path in PUBLIC else self._limited(_address(scope), path) or UNAUTHORIZED

    def _is_served(self, host: str) -> bool:
        """Return True if the service answers to this host name.

        Why: a web page can have its own domain name resolved to this machine's address (DNS rebinding). On loopback its
        requests would need no key, so there any name is refused that is not the service's own or in `allow_hosts`.
        """
        server = self.settings.server
        named = server.allow_hosts
        if host in self._own_names() or is_loopback(host):
            return True
        if not server.on_loopback and not named:
            return True  # the names of a public address are not known here, and a key is needed anyway
        return any(host == name.lower() or (name.startswith(".") and host.endswith(name.lower())) for name in named)

    def _own_names(self) -> set[str]:
        """Return the host that the service is bound to and that of its public URL, in lower case."""
        server = self.settings.server
        public = None if server.public_url is None else urlsplit(server.public_url).hostname
        return {name.lower() for name in (server.host, public) if name}

    def _is_local(self, host: str, headers: Mapping[str, str]) -> bool:
        """Return True if the request needs no key: by configuration, or because it was sent on this machine."""
        server = self.settings.server
        if server.insecure_no_auth:
            return True
        if not server.on_loopback or server.require_key:
            return False
        is_own_name = is_loopback(host) or host == server.host.lower()
        return is_own_name and not any(name in headers for name in _PROXY_HEADERS)

    async def _check_key(self, authorization: str, scope: Scope, path: str) -> str | Refusal:
        """Return the name of the key in an Authorization header; if it is not valid, what `_without_key` returns.

        If the store cannot be reached, the refusal has status 503.
        """
        try:
            key = await self._keys.judge(_token(authorization))
        except StoreError:
            return Refusal(503, "Keys cannot be checked now; try again", {"Retry-After": "1"})
        if key is not None:
            return self._limited(f"key {key.id}", path) or key.name
        return self._without_key(scope, path)

    def _limited(self, caller: str, path: str) -> Refusal | None:
        """Return the refusal (429) if `caller`, a key or an address, exceeds its rate limit; else count the request."""
        limits = self.settings.limits
        rate = limits.requests_per_second
        if rate is None or path in PUBLIC:
            return None
        wait = self._rate_limit.take(caller, rate, limits.burst or max(1, math.ceil(2 * rate)))
        if wait <= 0:
            return None
        seconds = str(max(1, math.ceil(wait)))
        return Refusal(429, f"The limit is {rate:g} requests a second. Wait {seconds} s", {"Retry-After": seconds})


def _host_header(scope: Scope) -> str | None:
    """Return the Host header of a request, or None if there is not exactly one, or it is no name or address."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return hosts[0] if len(hosts) == 1 and _HOST_HEADER.fullmatch(hosts[0]) else None


def _host_name(host_header: str) -> str:
    """Return the name or address in a Host header, in lower case and without the port."""
    found = _HOST_HEADER.fullmatch(host_header)
    assert found is not None
    return found[1].strip("[]").lower().rstrip(".")


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; of a repeated header, the last value."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _token(authorization: str) -> str:
    """Return the bearer token of an Authorization header, or "" for another scheme."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _address(scope: Scope) -> str:
    """Return the name under which the rate limit counts requests from the client's address."""
    client = scope.get("client")
    return f"address {client[0]}" if client else "address"


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the client's `X-Request-Id` if it is harmless in a log line, else a new random id."""
    given = headers.get("x-request-id", "")
    return given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else f"req_{secrets.token_hex(6)}"


def _cross_site(headers: Mapping[str, str], host: str) -> bool:
    """Return True if a browser reports that a page of another site sent the request.

    Programs send neither of the two headers. `host` is the Host header, with the port.
    """
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != host.lower()


async def _refuse(refusal: Refusal, request_id: str, scope: Scope, send: Send) -> None:
    """Send a refusal as a problem document (RFC 9457), without the body for HEAD."""
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
