"""Callbacks of HTTP agents that answered 202: heartbeat, progress, complete, fail.

Any instance may receive a callback. The store decides whether its attempt is still current. Thread: engine loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.agents.response import redact
from mainspring.agents.signing import read_token
from mainspring.agents.vault import Vault
from mainspring.model.change import Change, Result
from mainspring.model.errors import MainspringError, UnknownRun
from mainspring.model.http import HTTP_TASK, HttpResult
from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms
from mainspring.model.outcome import Failed, Outcome, Succeeded
from mainspring.model.run import Run, State
from mainspring.ports.clock import Clock
from mainspring.ports.executor import MAX_ERROR_CHARS, Attempt, Execution, Handler
from mainspring.ports.store import Runs, Store

#: Characters stored of a progress line.
MAX_PROGRESS_CHARS = 500
#: Bytes stored of the result that an agent sends.
MAX_RESULT_BYTES = 64 * 1024
#: A result up to this size is redacted on the engine's loop, a larger one on another thread: it takes milliseconds.
MAX_INLINE_BYTES = 4 * 1024


class CallbackDenied(MainspringError):
    """The callback token is missing, wrong or expired."""


class CallbackStale(MainspringError):
    """The attempt to which the callback belongs has ended."""


class CallbackReply(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Answer to a callback.

    `state`: the state of the run. `lease_ms`: how long the agent may be silent now; left out once the attempt has
    ended. `cancel`: why the agent should stop; left out unless it should.
    """

    state: str
    lease_ms: Ms = 0
    cancel: str | None = None


class ChangeOf(Protocol):
    """The part that callbacks use of the recorder, which stores the outcomes of attempts."""

    def change_of(self, attempt: Attempt, execution: Execution, outcome: Outcome, now: Ms) -> Change:
        """Return the change that records the outcome of an attempt which ends at `now`.

        `execution`: when the attempt began, and how long it took.
        """
        ...


def _no_call(*_: object) -> None:
    """Stand in for a function of `_HANDLER`; it is never called."""
    raise AssertionError("a callback calls no handler")


#: Handler of the built-in task. Only the recorder reads it: its retry policy applies to runs without one of their own.
_HANDLER = Handler(name=HTTP_TASK, kind="http", call=_no_call, call_blocking=_no_call, encode=_no_call)  # type: ignore[arg-type]  # never called


class Callbacks:
    """Carries out the callbacks of agents. The token of a callback is valid for one attempt: one epoch of one run.

    Every method raises UnknownRun if there is no such run, CallbackDenied if the token is wrong or expired, and
    CallbackStale if the attempt of the token has ended, except for a repeated `complete` or `fail`. `apply` commits a
    change; `recorder` makes the change that ends an attempt. There is no run of another namespace than `ns`.
    """

    def __init__(
        self,
        ns: str,
        store: Store,
        apply: Callable[[Change], Awaitable[Result]],
        recorder: ChangeOf,
        vault: Vault,
        clock: Clock,
    ) -> None:
        self._ns = ns
        self._store = store
        self._apply = apply
        self._recorder = recorder
        self._vault = vault
        self._clock = clock

    async def heartbeat(self, run_id: str, token: str) -> CallbackReply:
        """Renew the attempt's lease for the time that the agent may be silent, and return the answer to the agent.

        The lease ends when the token expires at the latest.
        """
        return await self._renew(await self._find_running(run_id, token), token)

    async def progress(self, run_id: str, token: str, text: str) -> CallbackReply:
        """Store the progress line `text`, redacted and cut to `MAX_PROGRESS_CHARS`, and renew the attempt's lease.

        Return the answer to the agent.
        """
        run = await self._find_running(run_id, token)
        await self._store.progress(run.id, run.epoch, _redact_and_cut(text, MAX_PROGRESS_CHARS))
        return await self._renew(run, token)

    async def complete(self, run_id: str, token: str, data: bytes, content_type: str = "") -> CallbackReply:
        """End the run as a success whose result is `data`, the body of the callback; return the answer to the agent.

        The first `MAX_RESULT_BYTES` of the body are stored, as redacted text. A repeated call changes nothing.
        """
        run = await self._find_run(run_id, token)
        if run.state is State.SUCCEEDED:
            return CallbackReply(run.state)  # the agent repeats itself
        start = data[:MAX_RESULT_BYTES]
        text = _read_result(start) if len(start) <= MAX_INLINE_BYTES else await asyncio.to_thread(_read_result, start)
        kept = HttpResult(202, text, content_type, len(data), len(data) > MAX_RESULT_BYTES)
        return await self._end(self._check_running(run), Succeeded(msgspec.json.encode(kept).decode()))

    async def fail(
        self, run_id: str, token: str, error: str, *, retry: bool = True, retry_after: Ms | None = None
    ) -> CallbackReply:
        """End the attempt as a failure with the text `error`; return the answer to the agent.

        A repeated call changes nothing. The retry policy decides whether another attempt follows; with `retry` False,
        none follows. `retry_after`: the shortest delay before the next attempt.
        """
        run = await self._find_run(run_id, token)
        if run.state in (State.FAILED, State.RETRYING):
            return CallbackReply(run.state)
        message = _redact_and_cut(error, MAX_ERROR_CHARS) or "the agent gave no reason"
        return await self._end(
            self._check_running(run),
            Failed(message, reason="agent", fingerprint="agent", retry=retry, retry_after=retry_after),
        )

    async def _find_run(self, run_id: str, token: str) -> Run:
        """Return the run if the token is valid for its present or last attempt.

        Raises: UnknownRun if there is no such run of a schedule; CallbackDenied if the token is wrong or expired;
        CallbackStale if the token belongs to an earlier attempt.
        """
        found = await self._store.find(Runs(ns=self._ns, id=run_id, limit=1))
        if not found or found[0].schedule_id is None:
            raise UnknownRun(f"no run has the id {run_id!r:.60}")
        run = found[0]
        keys = await self._vault.token_keys(run.schedule_id or "", run.started_at)
        epoch = read_token(token, keys, run_id, self._clock.now())
        if epoch is None:
            raise CallbackDenied
        if epoch != run.epoch:
            raise CallbackStale(f"attempt {epoch} is over: the run is {run.state} at attempt {run.epoch}")
        return run

    @staticmethod
    def _check_running(run: Run) -> Run:
        """Return the run. Raises: CallbackStale unless it is running."""
        if run.state is not State.RUNNING:
            raise CallbackStale(f"the run is {run.state}: this attempt has ended")
        return run

    async def _find_running(self, run_id: str, token: str) -> Run:
        """Return the run if it is running and the token is valid for its attempt.

        Raises: UnknownRun, CallbackDenied and CallbackStale, for the reasons of `_find_run`; CallbackStale also if the
        run is not running.
        """
        return self._check_running(await self._find_run(run_id, token))

    async def _renew(self, run: Run, token: str) -> CallbackReply:
        """Renew the lease of a run for the time that its agent may be silent, and return the answer to the agent.

        The lease ends when `token` expires at the latest. Raises: CallbackStale if the lease is lost.
        """
        target = run.options.http if run.options is not None else None
        silence = 60_000 if target is None else target.silence
        left = int(token.split(".")[1]) - self._clock.now()
        ttl = max(1, min(silence, left))
        answer = await self._store.renew(run.owner or "", [(run.id, run.epoch)], ttl)
        if run.id not in answer.kept:
            raise CallbackStale(f"the lease of attempt {run.epoch} has ended")
        return CallbackReply(run.state, ttl, answer.cancel.get(run.id))

    async def _end(self, run: Run, outcome: Outcome) -> CallbackReply:
        """Commit the outcome of a run's attempt, with "agent" as actor of the events; return the answer to the agent.

        Raises: CallbackStale if the store refuses it, because the attempt has ended.
        """
        now = self._clock.now()
        attempt = Attempt(run, None, _HANDLER, None)
        execution = Execution(began_at=run.started_at, ms=max(0, now - (run.started_at or now)))
        change = self._recorder.change_of(attempt, execution, outcome, now)
        by_agent = tuple(replace(event, actor="agent") for event in change.events)
        change = replace(change, events=by_agent, kind="other")  # a change of the kind of a plain success has no actor
        result = await self._apply(change)
        if not result.ok:
            raise CallbackStale(f"attempt {run.epoch} is over")
        assert change.run is not None
        return CallbackReply(change.run.state)


def _read_result(data: bytes) -> str:
    """Return the body of a callback as redacted text that every store can hold. Thread: any."""
    return redact(storable_text(data.decode("utf-8", "replace")))


def _redact_and_cut(text: str, max_chars: int) -> str:
    """Return the beginning of an agent's text, redacted, as text that every store can hold."""
    return storable_text(redact(text[:max_chars]))[:max_chars]
