"""HTTP agents: one pooled client on the handlers' loop; an answer becomes an outcome."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from mainspring.agents.guard import Forbidden, Guard, Unresolved
from mainspring.agents.response import Answer, as_text, blacken, read_bounded, retry_after
from mainspring.agents.signing import callback_token, signed
from mainspring.agents.turns import Turns
from mainspring.agents.vault import Known
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.model.errors import InvalidInput, StoreError
from mainspring.model.http import MAX_CRASHES, AgentSettings, HttpResult, HttpTarget, check_url, host_and_port
from mainspring.model.ids import plain
from mainspring.model.instant import Ms, isoformat
from mainspring.model.outcome import Accepted, Failed, Outcome, Snoozed, Succeeded
from mainspring.model.run import Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Done, Handler

#: A run that found no turn comes again after this, in ms; each time later, up to so many times as late.
AGAIN, MOST = 1_000, 30
#: Characters of an answer that an error text shows.
EXCERPT = 300
RETRIED = frozenset({408, 425, 429})

#: The host a call names, where the address it became is judged.
_HOST: ContextVar[str] = ContextVar("mainspring_agent_host", default="")


def http_handler(settings: AgentSettings) -> Handler:
    """The built-in task; the client makes the calls."""
    return Handler(
        name="http",
        kind="http",
        call=_unwired,
        call_blocking=_unwired,
        encode=_unwired,
        timeout=settings.timeout,
        max_crashes=MAX_CRASHES,
    )


def _unwired(*_: Any) -> Any:
    raise AssertionError("HTTP agents are called by their client")


class HttpClient:
    """Calls agents; used on the handlers' loop only."""

    def __init__(
        self,
        settings: AgentSettings,
        guard: Guard,
        clock: Clock,
        lookup: Callable[[Run], Awaitable[Known]],
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._clock = clock
        self._lookup = lookup
        self._rng = rng or random.Random()  # noqa: S311 - spreads waiting calls, no secret
        self._session: aiohttp.ClientSession | None = None
        self._all = Turns(settings.concurrency, clock.monotonic)
        self._turns: dict[tuple[str, int], Turns] = {}
        self.calls = 0
        #: Calls under way; whoever else was given to us waits for a turn.
        self.under_way = 0

    def adopt(self, settings: AgentSettings) -> None:
        """Go on with other bounds: calls at once to a host, bytes read and kept. The guard stays as it is."""
        self._settings = settings
        for turns in self._turns.values():
            turns.resize(settings.per_host)

    async def call(self, attempt: Attempt) -> Outcome:
        """One attempt: wait for a turn at the host, call, judge the answer."""
        options = attempt.run.options
        target = None if options is None else options.http
        if target is None:
            return Failed("this run names no agent", reason="agent", fingerprint="agent", retry=False)
        host = _host_of(target.url)
        if host is None:
            return Failed(f"{_where(target)}: is not a URL that can be called", reason="agent", retry=False)
        turns = self._turns.get(host)
        if turns is None:
            turns = self._turns[host] = Turns(self._settings.per_host, self._clock.monotonic)
        schedule = attempt.run.schedule_id
        if not await self._all.take(schedule):
            return self._later(attempt.run)
        try:
            if not await turns.take(schedule):
                return self._later(attempt.run)
            self.under_way += 1
            try:
                return await self._called(attempt, target, host[0])
            finally:
                self.under_way -= 1
                turns.give_back(schedule)
        finally:
            self._all.give_back(schedule)
            if turns.unused and self._turns.get(host) is turns:
                del self._turns[host]

    def _later(self, run: Run) -> Snoozed:
        """Back to the queue: others have a right to the turns that are left."""
        return Snoozed(int(AGAIN * min(run.attempt, MOST) * (1 + self._rng.random())))

    async def _called(self, attempt: Attempt, target: HttpTarget, host: str) -> Outcome:
        try:
            known = await self._lookup(attempt.run)
        except StoreError as error:
            return Failed(f"the agent's headers could not be read: {error}", fingerprint="store")
        if known.headers is None:
            gone = "the header values of this schedule are gone: set them again"
            return Failed(gone, reason="agent", fingerprint="headers", retry=False)
        body = b"" if attempt.body is None else attempt.body.encode()
        headers, token = self._headers(attempt, target, known, body)
        secret = (*known.headers.values(), *known.secrets, *([token] if token else ()))
        self.calls += 1
        _HOST.set(host)
        try:
            async with self._opened().request(
                target.method, target.url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                encoding = response.headers.get("Content-Encoding", "").strip().lower()
                answer = await read_bounded(response.content.iter_any(), encoding, self._settings.max_response)
                if answer.truncated:
                    response.close()
                return self._judged(target, response, answer, secret, accepts=token is not None)
        except Forbidden as error:
            return Failed(plain(str(error)), reason="forbidden", fingerprint="forbidden", retry=False)
        except Unresolved as error:
            return _unreachable(target, str(error), "unresolved")
        except aiohttp.InvalidURL:
            return Failed(f"{_where(target)}: is not a URL that can be called", reason="agent", retry=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            said = blacken(plain(_said(error)), secret)
            return _unreachable(target, said[:500], type(error).__name__)

    def _judged(
        self,
        target: HttpTarget,
        response: aiohttp.ClientResponse,
        answer: Answer,
        secret: tuple[str, ...],
        *,
        accepts: bool,
    ) -> Outcome:
        status = response.status
        if status == 202 and accepts:
            return Accepted(target.silence)
        text = blacken(as_text(answer.data, response.charset, self._settings.keep_response), secret)
        if 200 <= status < 300:
            cut = answer.truncated or len(answer.data) > self._settings.keep_response
            kept = HttpResult(status, text, response.content_type, answer.read, cut)
            return Succeeded(msgspec.json.encode(kept).decode())
        said = f"{_where(target)} answered {status} {blacken(plain(response.reason or ''), secret)[:100]}".rstrip()
        excerpt = " ".join(text[: EXCERPT * 2].split())[:EXCERPT]
        error = f"{said}: {excerpt}" if excerpt else said
        fingerprint = f"http:{status}"
        if status == 410:
            return Failed(error, reason="gone", fingerprint=fingerprint, retry=False)
        if 300 <= status < 400:
            return Failed(f"{said}; redirects are not followed", "redirect", fingerprint, retry=False)
        if status >= 500 or status in RETRIED:
            wait = retry_after(response.headers.get("Retry-After"), self._clock.now())
            return Failed(error, fingerprint=fingerprint, retry_after=wait)
        return Failed(error, reason="refused", fingerprint=fingerprint, retry=False)

    def _headers(
        self, attempt: Attempt, target: HttpTarget, known: Known, body: bytes
    ) -> tuple[dict[str, str], str | None]:
        """Everything of ours is in headers; the token is there when the agent can call back."""
        run, now = attempt.run, self._clock.now()
        headers: dict[str, str] = dict(known.headers or {})
        given = {name.lower() for name in headers}
        if body and "content-type" not in given:
            headers["Content-Type"] = "application/json"
        if "user-agent" not in given:
            headers["User-Agent"] = "Mainspring"
        headers["Accept-Encoding"] = "identity"
        headers["Idempotency-Key"] = run.idempotency_key
        headers["X-Schedule-Id"] = run.schedule_id or ""
        headers["X-Fire-Time"] = isoformat(run.due_at if run.fire_time is None else run.fire_time)
        headers["X-Attempt"] = str(run.attempt)
        headers["X-Fencing-Token"] = str(run.epoch)
        if attempt.timeout is not None:
            headers["X-Deadline"] = isoformat((attempt.began_at or now) + attempt.timeout)
        headers["traceparent"] = _traceparent(run)
        headers |= signed(known.secrets, run.idempotency_key, now // 1000, body)
        token = None
        if self._settings.public_url and known.secrets:
            token = callback_token(known.secrets[0], run.id, run.epoch, self._deadline(attempt, target, now))
            headers["X-Callback-Url"] = f"{self._settings.public_url.rstrip('/')}/api/callbacks/{run.id}"
            headers["X-Callback-Token"] = token
        return headers, token

    @staticmethod
    def _deadline(attempt: Attempt, target: HttpTarget, now: Ms) -> Ms:
        return now + (attempt.timeout or 0) + target.within

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                use_dns_cache=False,
                resolver=_Resolver(self._guard),
                socket_factory=self._socket,
                keepalive_timeout=30,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect / 1000),
            )
        return self._session

    def _socket(self, info: Any) -> socket.socket:
        """The last word before a connection is made: this very address, on this very port."""
        family, kind, protocol, _, address = info
        self._guard.check_port(address[1])
        self._guard.check_address(address[0], _HOST.get())
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class HttpExecutor(CoroutineExecutor):
    """Attempts are coroutines like any other; closing ends the pooled connections on their own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, done: Done, client: HttpClient) -> None:
        super().__init__(loop, clock, done)
        self._client = client
        self.adopt = client.adopt

    @property
    def under_way(self) -> int:
        """Calls that have their turn; from any thread."""
        return self._client.under_way

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._client.close()
        elif self._loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._client.close(), self._loop))


class _Resolver(AbstractResolver):
    """Names become judged addresses; aiohttp dials only these."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._guard.addresses(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing to close."""


@lru_cache(4_096)
def _host_of(url: str) -> tuple[str, int] | None:
    """Host and port of a URL that may have been stored by somebody who did not check it."""
    try:
        return host_and_port(check_url(url))
    except InvalidInput:
        return None


def _where(target: HttpTarget) -> str:
    """The call as an error text shows it: without the query, which may hold a secret."""
    return f"{target.method} {plain(target.url).partition('?')[0]}"


def _said(error: Exception) -> str:
    """What went wrong, in words; the client's own where there are none better."""
    below = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(below, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(below, ConnectionResetError | aiohttp.ServerDisconnectedError):
        return "the connection was closed before there was an answer"
    return f"{type(error).__name__}: {error}"


def _unreachable(target: HttpTarget, said: str, kind: str) -> Failed:
    return Failed(f"{_where(target)}: {said}", reason="network", fingerprint=f"network:{kind}")


def _traceparent(run: Run) -> str:
    """The run is the trace, the attempt the span; so every instance names them alike."""
    span = hashlib.blake2b(f"{run.id}:{run.epoch}".encode(), digest_size=8).hexdigest()
    return f"00-{run.id.replace('-', '')}-{span}-01"
