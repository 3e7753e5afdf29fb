"""Access control: passes or refuses each request before any route, by its Host header, API key, origin and rate.

While the service is bound to loopback, and `require_key` is not set, a request needs no key if its Host header names
this machine and no proxy sent the request. All other requests need a key, except on the routes of `PUBLIC` and
`OWN_TOKEN`. With the setting `insecure_no_auth`, no request needs a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
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
from mainspring.server.client_address import find_client, rate_bucket
from mainspring.server.rate_limit import RateLimit
from mainspring.service.api_keys import KEY_CACHE_MS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mainspring.service.api_keys import ApiKey, KeyRing

log = logging.getLogger("mainspring.api")

#: Paths that need no key. Their answers have no details for a caller without a key (`api/routes/health.py`).
PUBLIC = frozenset({"/health", "/ready", "/api/health"})
#: Those of them that have no rate limit, so that no stranger can make a supervisor believe that the service is dead.
PROBES = frozenset({"/health", "/ready"})
#: How the paths begin that need no key because their routes check a token.
OWN_TOKEN = ("/api/callbacks/",)
#: Statuses of the answers to callbacks without a valid token.
_DENIED_CALLBACKS = frozenset({401, 404})
#: How the names of headers begin that proxies, load balancers and content networks add. A request with one of them may
#: come from another machine.
_PROXY_HEADERS = (
    *("forwarded", "x-forwarded", "x-original-", "x-proxyuser-", "x-scheme", "via", "front-end-https", "cdn-loop"),
    *("x-real-ip", "x-client-ip", "client-ip", "x-cluster-client-ip", "true-client-ip", "x-remote-"),
    *(
        "cf-",
        "fastly-",
        "fly-",
        "x-amz",
        "x-appengine-",
        "x-arr-",
        "x-azure-",
        "x-cloud-trace-",
        "x-envoy-",
        "x-vercel-",
    ),
)
#: Methods that change nothing.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: A Host header: an IPv6 address in brackets, or a name or IPv4 address; then perhaps a port.
_HOST_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
_ANSWER_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
#: The headers of every answer while no caller needs a key, so that a client can notice it.
_NO_AUTH_HEADERS = (*_ANSWER_HEADERS, (b"x-mainspring-auth", b"none"))
#: Status of a refusal → `title` of its problem document.
_TITLES = {
    400: "The request is not valid",
    401: "A key is needed",
    403: "The request comes from another site",
    421: "The service does not answer to this host name",
    429: "Too many requests",
    503: "The store cannot be reached",
}
#: Status of a refusal → last part of the URI in `type` of its problem document.
_PROBLEM_TYPES = {
    400: "invalid",
    401: "unauthorized",
    403: "cross-site",
    421: "misdirected",
    429: "rate-limited",
    503: "unavailable",
}


class Refusal(Struct, frozen=True):
    """Answer to a request that may not pass: its status, the `detail` of its problem document, and further headers.

    `kind` is the last part of the URI in `type` of the document, `title` its title; "": those of the status.
    """

    status: int
    detail: str
    headers: Mapping[str, str] = {}
    kind: str = ""
    title: str = ""


#: Answer to every request without a valid key. It is equal for malformed, unknown, expired and revoked keys, because a
#: difference would help to guess keys.
UNAUTHORIZED = Refusal(
    401,
    "Send a valid API key as `Authorization: Bearer msk_…`. `mainspring key create` makes one",
    {"WWW-Authenticate": 'Bearer realm="mainspring"'},
)


class Access:
    """ASGI middleware that passes a request on to `app`, or answers it with a refusal.

    It adds `request_id` and `address`, that of the client, to the state of every request, and `caller` to that of a
    request that passes, with `key` if a valid key was sent. `caller` is the name of that key. It is "local" if no key
    was sent and `_is_local` says that none is needed, and "" for all other requests on a route of `PUBLIC`. On
    `OWN_TOKEN`, no key is read and `caller` is always "".
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, keys: KeyRing, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._keys = keys
        self._rate_limit = RateLimit(monotonic)
        #: Its buckets are for callbacks. Why its own: strangers can fill it, and the keys keep theirs.
        self._callback_limit = RateLimit(monotonic)
        #: The present settings; the service replaces them when the configuration is reloaded.
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # web sockets are not served
        state = scope.setdefault("state", {})
        headers = _headers(scope)
        send = _guard_answers(send, _NO_AUTH_HEADERS if self.settings.server.insecure_no_auth else _ANSWER_HEADERS)
        state["request_id"] = _request_id(headers)
        client = scope.get("client")
        trusted = self.settings.server.trusted_proxies
        state["address"] = find_client(client[0], scope["headers"], trusted) if client else ""
        answer = await self._check(scope, headers)
        if isinstance(answer, Refusal):
            await _refuse(answer, state["request_id"], scope, send)
            return
        state["caller"] = answer
        if scope["path"].startswith(OWN_TOKEN):
            await self._pass_callback(scope, receive, send)
        elif answer in ("", "local"):
            await self._app(scope, receive, send)
        else:
            await self._run_while_valid(_token(headers["authorization"]), scope, receive, send)

    async def _run_while_valid(self, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for a request, and end its answer when the key in `token` is revoked or expires.

        Why: an answer such as an event stream may last longer than the key of its request. The key is checked every
        `KEY_CACHE_MS`. While the store cannot be reached, the answer goes on.
        """
        started = ended = False

        async def send_tracked(message: Message) -> None:
            nonlocal started, ended
            started = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def answer() -> None:
            await self._app(scope, receive, send_tracked)

        answering = asyncio.create_task(answer())
        try:
            while not (await asyncio.wait([answering], timeout=KEY_CACHE_MS / 1000))[0]:
                with contextlib.suppress(StoreError):
                    if await self._keys.check_token(token) is None:
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
        """Check a request's Host header, key, origin and rate. Return its caller if it may pass, else the refusal.

        The caller is the name of a valid key, or "local" if no key was sent and `_is_local` says that none is needed.
        It is "" on a route of `PUBLIC` if neither applies, and always on `OWN_TOKEN`, where this method reads no key.
        """
        host_header = _host_header(scope)
        if host_header is None:
            return Refusal(400, "Send one Host header with a name or an address")
        host = _host_name(host_header)
        if not self._is_served(host):
            return Refusal(421, "The service does not answer to this host name. Add it to server.allow_hosts")
        path: str = scope["path"]
        if path.startswith(OWN_TOKEN):
            return self._check_callback_rate(path, headers) or ""
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._check_key(authorization, scope, path)
        if not self._is_local(host, headers):
            return self._admit_without_key(scope, path)
        if _is_cross_site(headers, host_header) and not _opens_page(scope["method"], headers):
            return Refusal(403, "A page of another site sent the request. Send an API key, or no Origin header")
        return self._check_rate(_address(scope), path) or "local"

    def _admit_without_key(self, scope: Scope, path: str) -> str | Refusal:
        """Return a refusal (429) over the rate limit, else "" if `path` is in `PUBLIC`, else a refusal (401)."""
        return self._check_rate(_address(scope), path) or ("" if path in PUBLIC else UNAUTHORIZED)

    def _is_served(self, host: str) -> bool:
        """Return True if the service answers requests whose Host header has this name or address.

        Why: a web page can have its own domain name resolved to this machine's address (DNS rebinding). On loopback,
        requests of that page would need no key. So a service on loopback, or with `allow_hosts`, answers only to its
        own names, to loopback names, and to those in `allow_hosts`. Any other service answers to every name.
        """
        server = self.settings.server
        named = server.allow_hosts
        if host in self._own_names() or is_loopback(host):
            return True
        if not server.on_loopback and not named:
            return True  # the names of a public address are not known, and every request needs a key there
        return any(host == name.lower() or (name.startswith(".") and host.endswith(name.lower())) for name in named)

    def _own_names(self) -> set[str]:
        """Return the host to which the service is bound and the host of its public URL, in lower case."""
        server = self.settings.server
        public = None if server.public_url is None else urlsplit(server.public_url).hostname
        return {name.lower() for name in (server.host, public) if name}

    def _is_local(self, host: str, headers: Mapping[str, str]) -> bool:
        """Return True if a request needs no key, by configuration or because it was sent on this machine.

        `host` is the name in its Host header.
        """
        server = self.settings.server
        if server.insecure_no_auth:
            return True
        if not server.on_loopback or server.require_key:
            return False
        is_own_name = is_loopback(host) or host == server.host.lower()
        return is_own_name and not any(name.startswith(_PROXY_HEADERS) for name in headers)

    async def _check_key(self, authorization: str, scope: Scope, path: str) -> str | Refusal:
        """Return the name of the key in an Authorization header if it is valid and within its rate limit.

        If the key is valid, return a refusal if it is over its rate limit (429), or may only read and the request would
        change something (403). If the key is not valid, return "" on a route of `PUBLIC`, else a refusal: 429 if the
        client's address is over the rate limit, 401 otherwise. If the store cannot be reached, return a refusal (503).
        """
        token = _token(authorization)
        # Before the store is asked: a stranger could ask it for one key after the other.
        counted = self._keys.must_look_up(token)
        if counted and (refusal := self._check_rate(_address(scope), path)):
            return refusal
        try:
            key = await self._keys.check_token(token)
        except StoreError:
            return Refusal(503, "Keys cannot be checked now; try again", {"Retry-After": "1"})
        if key is None:
            denied = "" if path in PUBLIC else UNAUTHORIZED
            return denied if counted else self._check_rate(_address(scope), path) or denied
        if counted:
            self._rate_limit.give_back(_address(scope))  # only keys that do not exist count for the address
        scope["state"]["key"] = key
        return self._check_rate(f"key {key.id}", path) or _check_scope(key, scope["method"]) or key.name

    def _check_rate(self, caller: str, path: str) -> Refusal | None:
        """Count a request of `caller`, which names a key or an address, and return None.

        If the request exceeds the rate limit, return the refusal (429) instead. Routes of `PROBES` have no limit.
        """
        limits = self.settings.limits
        rate = limits.requests_per_second
        return None if rate is None or path in PROBES else self._take(self._rate_limit, caller, rate)

    def _take(self, limit: RateLimit, caller: str, rate: float) -> Refusal | None:
        """Take a token from the bucket of `caller` and return None; if it has none, return the refusal (429)."""
        wait = limit.take(caller, rate, self.settings.limits.burst or max(1, math.ceil(2 * rate)))
        if wait <= 0:
            return None
        seconds = str(max(1, math.ceil(wait)))
        return Refusal(429, f"The limit is {rate:g} requests a second. Wait {seconds} s", {"Retry-After": seconds})

    def _check_callback_rate(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Count a callback and return None, or return the refusal (429) if it exceeds the rate limit.

        Each run has a bucket for each token, so that only the agent with the right token empties its bucket.
        """
        rate = self.settings.limits.requests_per_second
        if rate is None:
            return None
        token = hashlib.sha256(headers.get("authorization", "").encode("latin-1")).hexdigest()[:32]
        run_id = path.removeprefix(OWN_TOKEN[0]).partition("/")[0][:64]
        return self._take(self._callback_limit, f"{run_id} {token}", rate)

    async def _pass_callback(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for a callback. If it is denied, count it for the client's address; over the limit, answer 429.

        Why only then: behind a proxy, agents may share an address with others, whose calls must not use up its limit.
        """
        refused = False

        async def send_limited(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in _DENIED_CALLBACKS:
                refusal = self._check_rate(_address(scope), scope["path"])
                if refusal is not None:
                    refused = True
                    await _refuse(refusal, scope["state"]["request_id"], scope, send)
            if not refused:
                await send(message)

        await self._app(scope, receive, send_limited)


def _check_scope(key: ApiKey, method: str) -> Refusal | None:
    """Return the refusal (403) of a request that would change something with a key that may only read, else None."""
    if key.may_write or method in _SAFE_METHODS:
        return None
    detail = f"The key {key.name!r} may only read. Use a key that was made with --scope write"
    return Refusal(403, detail, kind="read-only", title="The key may only read")


def _host_header(scope: Scope) -> str | None:
    """Return the Host header of a request; None if it has none or several, or if it is not a name or address."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return hosts[0] if len(hosts) == 1 and _HOST_HEADER.fullmatch(hosts[0]) else None


def _host_name(host_header: str) -> str:
    """Return the name or address in a Host header, in lower case and without the port."""
    found = _HOST_HEADER.fullmatch(host_header)
    assert found is not None
    return found[1].strip("[]").lower().rstrip(".")


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their names in lower case. If a header is repeated, its last value counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _token(authorization: str) -> str:
    """Return the bearer token in an Authorization header; "" if its scheme is not Bearer."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _address(scope: Scope) -> str:
    """Return the name under which the rate limit counts a request without a key: the address of its client."""
    return f"address {rate_bucket(scope['state']['address'])}"


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the client's `X-Request-Id` if it has 1 to 64 ASCII letters, digits or `_.:-`, else a new random id.

    Why: the id is written to the log, so other characters are not accepted.
    """
    given = headers.get("x-request-id", "")
    return given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else f"req_{secrets.token_hex(6)}"


def _is_cross_site(headers: Mapping[str, str], host: str) -> bool:
    """Return True if a page of another origin sent the request, as the headers Sec-Fetch-Site or Origin say.

    Browsers set these headers; other programs usually send neither. `host` is the Host header, with the port.
    """
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != host.lower()


def _opens_page(method: str, headers: Mapping[str, str]) -> bool:
    """Return True if a browser sent the request to show its answer as a page of its own, for example after a link.

    The page that has the link learns nothing of the answer. A frame, an image or a script would tell it whether the
    answer is an error, and so which names exist.
    """
    shown = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return shown and method in _SAFE_METHODS


def _guard_answers(send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> Send:
    """Return `send` with `headers` for every answer, such as that browsers must not give it to other sites."""

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [(name, value) for name, value in headers if name not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_guarded


async def _refuse(refusal: Refusal, request_id: str, scope: Scope, send: Send) -> None:
    """Send a refusal as a problem document (RFC 9457). The answer to a HEAD request has no body."""
    body = msgspec.json.encode(
        {
            "type": f"/api/errors/{refusal.kind or _PROBLEM_TYPES[refusal.status]}",
            "title": refusal.title or _TITLES[refusal.status],
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
