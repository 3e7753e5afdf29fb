"""The HTTP executor: calls HTTP agents with one pooled client on the handlers' loop; responses become outcomes."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace

from mainspring.agents.fair_limiter import FairLimiter, WaitingPlaces
from mainspring.agents.guard import AddressGuard, Forbidden, Unresolved
from mainspring.agents.response import decode_text, parse_retry_after, read_bounded, redact
from mainspring.agents.signing import callback_token, sign_headers
from mainspring.agents.vault import CallSecrets
from mainspring.executors.bounded_connector import BoundedConnector
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.executors.outcomes import record_begin
from mainspring.model.errors import InvalidInput, StoreError
from mainspring.model.http import (
    MAX_CALL_CRASHES,
    METHODS_WITHOUT_BODY,
    AgentSettings,
    HttpResult,
    HttpTarget,
    check_url,
    host_and_port,
)
from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms, isoformat
from mainspring.model.outcome import Accepted, Failed, Outcome, Snoozed, Succeeded
from mainspring.model.query_values import query_of, secret_values, with_query
from mainspring.model.run import Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Done, Handler, HeldRun

#: A call that found no free slot is tried again after this time, multiplied by the attempt's number (at most
#: `MAX_RETRY_FACTOR`) and by a random factor from 1 to 2.
RETRY_BASE_MS: Ms = 1_000
MAX_RETRY_FACTOR = 30
#: A call waits at most this many seconds for its slots; after that, it counts as timed out.
MAX_WAIT_SECONDS = 86_400.0
#: The most characters of a response that an error text shows.
MAX_EXCERPT_CHARS = 300
#: Statuses below 500 after which the call is tried again, as after every status from 500 on.
RETRIED_STATUSES = frozenset({408, 425, 429})

#: The host name in the URL of the present call. The check of an address needs it, and aiohttp gives that check only the
#: address.
_HOST: ContextVar[str] = ContextVar("mainspring_agent_host", default="")


def http_handler(settings: AgentSettings) -> Handler:
    """Return the handler of the built-in task, with functions that must not be called.

    `make_agent_client` makes a copy of it whose `call` calls the agent.
    """
    return Handler(
        name="http",
        kind="http",
        call=_unwired,
        call_blocking=_unwired,
        encode=_unwired,
        timeout=settings.timeout,
        max_crashes=MAX_CALL_CRASHES,
    )


def _unwired(*_: Any) -> Any:
    """Raise AssertionError.

    Fills the functions of `Handler` that agent calls do not use, or that `make_agent_client` replaces.
    """
    raise AssertionError("HTTP agents are called by their client")


class HttpClient:
    """Calls HTTP agents through one pool of connections, within the limits of its settings. Thread: handlers' loop."""

    def __init__(
        self,
        settings: AgentSettings,
        guard: AddressGuard,
        clock: Clock,
        look_up_secrets: Callable[[Run], Awaitable[CallSecrets]],
        rng: random.Random | None = None,
    ) -> None:
        """Make a client without connections yet. `guard` checks the addresses that are called.

        `look_up_secrets` returns the headers and signing secrets for the call of a run; it may raise StoreError. `rng`
        makes the random part of the delays after which calls without a slot are tried again.
        """
        self._settings = settings
        self._guard = guard
        self._clock = clock
        self._look_up_secrets = look_up_secrets
        self._rng = rng or random.Random()  # noqa: S311 - spreads waiting calls, no secret
        self._session: aiohttp.ClientSession | None = None
        #: Where calls wait that are at a limit; they use no slot of any limit and no part of the worker's queue.
        self._places = WaitingPlaces()
        self._all_calls = FairLimiter(settings.concurrency, clock.monotonic, self._places)
        self._calls_of_host: dict[tuple[str, int], FairLimiter] = {}
        #: Number of calls made.
        self.calls = 0
        #: Number of calls under way.
        self.under_way = 0

    @property
    def waiting_places(self) -> int:
        """The most attempts that this client holds beside its calls, because they wait at a limit."""
        return self._places.total

    @property
    def placed(self) -> int:
        """Number of attempts that are under way or wait at a limit. The others wait for the worker's queue to move."""
        return self.under_way + self._places.taken

    def adopt(self, settings: AgentSettings) -> None:
        """Use new settings from now on.

        They change the limit of calls at once to one host, the limits of response sizes, and the URL for callbacks. The
        address guard, the limit of all calls and the time-outs stay as they are.
        """
        self._settings = settings
        for limiter in self._calls_of_host.values():
            limiter.resize(settings.per_host)

    async def call(self, held: HeldRun) -> Outcome:
        """Call the agent of a run and return the outcome; `Snoozed` if it got no slot and too many calls wait for one.

        A call needs two slots: one of the limit of the agent's host, then one of the limit of all calls. While it waits
        for them, its time limit does not run.
        """
        run = held.attempt.run
        target = None if run.options is None else run.options.http
        if target is None:
            return Failed("this run names no agent", reason="agent", fingerprint="agent", retry=False)
        host = _host_of(target.url.partition("?")[0] if target.query_kept else target.url)
        if host is None:
            return _uncallable(target)
        limiter = self._calls_of_host.get(host)
        if limiter is None:
            limiter = FairLimiter(self._settings.per_host, self._clock.monotonic, self._places)
            self._calls_of_host[host] = limiter
        set_limit = held.execution.set_limit
        if set_limit is not None:
            set_limit(MAX_WAIT_SECONDS)
        try:
            if not await limiter.acquire(run.schedule_id):
                return self._snooze(run)
            try:
                if not await self._all_calls.acquire(run.schedule_id):
                    return self._snooze(run)
                self.under_way += 1
                try:
                    if set_limit is not None:
                        set_limit(None)
                    return await self._call_now(held.attempt, held.execution.began_at, target, host[0])
                finally:
                    self.under_way -= 1
                    self._all_calls.release(run.schedule_id)
            finally:
                limiter.release(run.schedule_id)
        finally:
            if limiter.unused and self._calls_of_host.get(host) is limiter:
                del self._calls_of_host[host]

    def _snooze(self, run: Run) -> Snoozed:
        """Return the outcome of a call that got no slot: the run is tried again later, after a growing delay.

        Why it does not wait: as many calls as may wait do so already, and the runs of other agents need room.
        """
        return Snoozed(int(RETRY_BASE_MS * min(run.attempt, MAX_RETRY_FACTOR) * (1 + self._rng.random())))

    async def _call_now(self, attempt: Attempt, began_at: Ms | None, target: HttpTarget, host: str) -> Outcome:
        """Call the agent now, because the call has its slots, and return the outcome. A network error is a failure.

        `began_at`: when the attempt began, in store time. `host`: the host name in the URL of `target`.
        """
        try:
            secrets = await self._look_up_secrets(attempt.run)
        except StoreError as error:
            return Failed(f"the agent's headers could not be read: {error}", fingerprint="store")
        if secrets.headers is None or (target.query_kept and not secrets.query):
            what = "query values" if target.query_kept else "header values"
            gone = f"the {what} of this schedule are gone: set them again"
            return Failed(gone, reason="agent", fingerprint="headers", retry=False)
        if target.query_kept:
            target = replace(target, url=with_query(target.url, secrets.query))
        payload = None if target.method in METHODS_WITHOUT_BODY else attempt.body
        body = b"" if payload is None else payload.encode()
        now = self._clock.now()
        headers = _own_headers(attempt, secrets, body, began_at, now)
        token = self._add_callback(headers, attempt, target, secrets, now)
        shared = secret_values(query_of(target.url))
        redacted = (*secrets.headers.values(), *shared, *secrets.secrets, *([token] if token else ()))
        self.calls += 1
        _HOST.set(host)
        try:
            return await self._request(target, body, headers, redacted, accepts=token is not None)
        except Forbidden as error:
            return Failed(storable_text(str(error)), reason="forbidden", fingerprint="forbidden", retry=False)
        except Unresolved as error:
            return _unreachable(target, str(error), "unresolved")
        except aiohttp.InvalidURL:
            return _uncallable(target)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = redact(storable_text(_network_error_text(error)), redacted)
            return _unreachable(target, text[:500], type(error).__name__)

    async def _request(
        self, target: HttpTarget, body: bytes, headers: dict[str, str], redacted: tuple[str, ...], *, accepts: bool
    ) -> Outcome:
        """Send the request and return the outcome of its response, in which the texts in `redacted` are replaced.

        `headers`: name → value, to be sent. `accepts`: the agent can call back, so a response 202 leaves the run open.
        Raises: Forbidden if an address may not be called; Unresolved if the host has no address; the errors of aiohttp.
        """
        async with self._opened().request(
            target.method, target.url, data=body or None, headers=headers, allow_redirects=False
        ) as response:
            encoding = response.headers.get("Content-Encoding", "").strip().lower()
            answer = await read_bounded(response.content.iter_any(), encoding, self._settings.max_response)
            if answer.truncated:
                response.close()
            if response.status == 202 and accepts:
                return Accepted(target.silence)
            text = redact(decode_text(answer.data, response.charset, self._settings.keep_response), redacted)
            cut = answer.truncated or len(answer.data) > self._settings.keep_response
            result = HttpResult(response.status, text, response.content_type, answer.read, cut)
            kept = msgspec.json.encode(result).decode()
            if 200 <= response.status < 300:
                return Succeeded(kept)
            reason = redact(storable_text(response.reason or ""), redacted)[:100]
            summary = f"{_where(target)} answered {response.status} {reason}".rstrip()
            wait = parse_retry_after(response.headers.get("Retry-After"), self._clock.now())
            return replace(_error_response(response.status, summary, text, wait), answer=kept)

    def _add_callback(
        self, headers: dict[str, str], attempt: Attempt, target: HttpTarget, secrets: CallSecrets, now: Ms
    ) -> str | None:
        """Add the headers with the URL and the token for callbacks, and return the token.

        If this instance has no public URL or no key for tokens, the agent cannot call back: add nothing and return
        None. `now` is the time from which the token's life counts.
        """
        if not self._settings.public_url or not secrets.callback_key:
            return None
        run = attempt.run
        deadline = now + (attempt.timeout or 0) + target.within
        token = callback_token(secrets.callback_key, run.id, run.epoch, deadline)
        headers["X-Callback-Url"] = f"{self._settings.public_url.rstrip('/')}/api/callbacks/{run.id}"
        headers["X-Callback-Token"] = token
        return token

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session, and open it at the first call."""
        if self._session is None:
            connector = BoundedConnector(
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
        """Return an unconnected socket for `info`, an address that aiohttp will connect to.

        `info`: (family, type, protocol, name, address). First check its address and port against the settings for
        agents. Why: URLs with an address instead of a name are not resolved, so nothing has checked them. Raises:
        Forbidden.
        """
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
    """Runs calls of agents as coroutines on the handlers' loop.

    `close` closes the pooled connections on that loop, if it still runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, done: Done, client: HttpClient) -> None:
        super().__init__(loop, clock, done)
        self._client = client
        self.adopt = client.adopt

    @property
    def under_way(self) -> int:
        """Number of calls under way. Thread: any."""
        return self._client.under_way

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        for held in held_runs:
            held.execution.set_limit = partial(self._set_limit, held)
        super().start(held_runs)

    def _set_limit(self, held: HeldRun, seconds: float | None) -> None:
        """Let an attempt end as timed out after `seconds`. None: the call begins now, with the limit of the attempt."""
        timeout = held.attempt.timeout
        if seconds is None:
            record_begin(held.execution, self._clock)
        if timeout is not None:
            self._deadlines.enter(held, timeout / 1000 if seconds is None else seconds)

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._client.close()
        elif self._loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._client.close(), self._loop))


class _Resolver(AbstractResolver):
    """Resolves the host names in URLs for aiohttp, only to addresses that the guard allows."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises: Forbidden if one of them, or the port, may not be called; Unresolved if the host has no address.
        """
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
        """Do nothing: there is nothing to close."""


def _own_headers(attempt: Attempt, secrets: CallSecrets, body: bytes, began_at: Ms | None, now: Ms) -> dict[str, str]:
    """Return the headers of a call: the schedule's own, facts about the run, its deadline, and the signature.

    `began_at`: when the attempt began, in store time; None: at `now`. `now`: the time of the signature.
    """
    run = attempt.run
    headers: dict[str, str] = dict(secrets.headers or {})
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
        headers["X-Deadline"] = isoformat((began_at or now) + attempt.timeout)
    headers["traceparent"] = _traceparent(run)
    headers |= sign_headers(secrets.secrets, run.idempotency_key, now // 1000, body)
    return headers


def _error_response(status: int, summary: str, text: str, retry_after: Ms | None) -> Failed:
    """Return the outcome of a response that is not a success; its status decides whether the call is tried again.

    `summary` names the call and the status, `text` is the redacted body. `retry_after`: the delay that the response
    asked for; None: it asked for none.
    """
    excerpt = " ".join(text[: MAX_EXCERPT_CHARS * 2].split())[:MAX_EXCERPT_CHARS]
    error = f"{summary}: {excerpt}" if excerpt else summary
    fingerprint = f"http:{status}"
    if status == 410:
        return Failed(error, reason="gone", fingerprint=fingerprint, retry=False)
    if 300 <= status < 400:
        return Failed(f"{summary}; redirects are not followed", "redirect", fingerprint, retry=False)
    if status >= 500 or status in RETRIED_STATUSES:
        return Failed(error, fingerprint=fingerprint, retry_after=retry_after)
    return Failed(error, reason="refused", fingerprint=fingerprint, retry=False)


@lru_cache(4_096)
def _host_of(url: str) -> tuple[str, int] | None:
    """Return host and port of a URL; None if the URL is not valid, as it may have been stored unchecked."""
    try:
        return host_and_port(check_url(url))
    except InvalidInput:
        return None


def _where(target: HttpTarget) -> str:
    """Return method and URL of a call for an error text, without the query, which may contain a secret."""
    return f"{target.method} {storable_text(target.url).partition('?')[0]}"


def _network_error_text(error: Exception) -> str:
    """Return the error text of a call that failed: our own text for a lost or refused connection, else aiohttp's."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(cause, ConnectionResetError | aiohttp.ServerDisconnectedError):
        return "the connection was closed before there was an answer"
    return f"{type(error).__name__}: {error}"


def _unreachable(target: HttpTarget, text: str, kind: str) -> Failed:
    """Return the outcome of a call that got no complete response: a failure that may be retried.

    `text` is the error. Failures of one `kind`, such as "unresolved", have one fingerprint.
    """
    return Failed(f"{_where(target)}: {text}", reason="network", fingerprint=f"network:{kind}")


def _uncallable(target: HttpTarget) -> Failed:
    """Return the outcome of a call whose URL is not valid: a failure without a retry."""
    return Failed(f"{_where(target)}: is not a URL that can be called", reason="agent", retry=False)


def _traceparent(run: Run) -> str:
    """Return the header `traceparent` (W3C): the run is the trace, the attempt the span.

    Its value is computed from run id and epoch, so every instance sends the same value for one attempt.
    """
    span = hashlib.blake2b(f"{run.id}:{run.epoch}".encode(), digest_size=8).hexdigest()
    return f"00-{run.id.replace('-', '')}-{span}-01"
