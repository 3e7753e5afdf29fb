"""What an agent that answered 202 says later: any instance may hear it, the store judges. On the engine's loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.agents.response import blacken
from mainspring.agents.signing import read_token
from mainspring.agents.vault import Vault
from mainspring.model.change import Change, Result
from mainspring.model.errors import MainspringError, UnknownRun
from mainspring.model.http import HTTP_TASK, HttpResult
from mainspring.model.ids import plain
from mainspring.model.instant import Ms
from mainspring.model.outcome import Failed, Outcome, Succeeded
from mainspring.model.run import Run, State
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Handler
from mainspring.ports.store import Runs, Store

MAX_PROGRESS = 500
MAX_ERROR = 2_000
KEPT_RESULT = 64 * 1024


class CallbackDenied(MainspringError):
    """The callback token is missing, wrong, or over."""


class CallbackStale(MainspringError):
    """The attempt this callback belongs to is over."""


class Standing(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an agent hears in answer: how long it may be silent now, and whether it should stop."""

    state: str
    lease_ms: Ms = 0
    cancel: str | None = None


class ChangeOf(Protocol):
    """The recorder: an outcome as a write."""

    def change_of(self, attempt: Attempt, outcome: Outcome, now: Ms) -> Change: ...


def _no_call(*_: object) -> None:
    raise AssertionError("a callback calls nobody")


#: What callbacks know of the task: its retry budget, where the run brings none.
_HANDLER = Handler(name=HTTP_TASK, kind="http", call=_no_call, call_blocking=_no_call, encode=_no_call)  # type: ignore[arg-type]  # never called


class Callbacks:
    """Heartbeat, progress, complete, fail: each under the token and the epoch of one attempt."""

    def __init__(
        self,
        store: Store,
        apply: Callable[[Change], Awaitable[Result]],
        recorder: ChangeOf,
        vault: Vault,
        clock: Clock,
    ) -> None:
        self._store = store
        self._apply = apply
        self._recorder = recorder
        self._vault = vault
        self._clock = clock

    async def heartbeat(self, run_id: str, token: str) -> Standing:
        """The agent is alive: its lease begins anew, never beyond the token's end."""
        return await self._alive(await self._held(run_id, token), token)

    async def progress(self, run_id: str, token: str, text: str) -> Standing:
        """A heartbeat with a line for people."""
        run = await self._held(run_id, token)
        await self._store.progress(run.id, run.epoch, plain(blacken(text))[:MAX_PROGRESS])
        return await self._alive(run, token)

    async def complete(self, run_id: str, token: str, data: bytes, content_type: str = "") -> Standing:
        """The work is done; the body is kept as the answer."""
        run = await self._run(run_id, token)
        if run.state is State.SUCCEEDED:
            return Standing(run.state)  # said twice
        text = blacken(plain(data[:KEPT_RESULT].decode("utf-8", "replace")))
        kept = HttpResult(202, text, content_type, len(data), len(data) > KEPT_RESULT)
        return await self._end(self._still(run), Succeeded(msgspec.json.encode(kept).decode()))

    async def fail(
        self, run_id: str, token: str, error: str, *, retry: bool = True, retry_after: Ms | None = None
    ) -> Standing:
        """The work failed; the retry policy decides, unless the agent says that another try is useless."""
        run = await self._run(run_id, token)
        if run.state in (State.FAILED, State.RETRYING):
            return Standing(run.state)
        said = plain(blacken(error))[:MAX_ERROR] or "the agent gave no reason"
        return await self._end(
            self._still(run), Failed(said, reason="agent", fingerprint="agent", retry=retry, retry_after=retry_after)
        )

    async def _run(self, run_id: str, token: str) -> Run:
        """The run, if the token is good for its present attempt."""
        found = await self._store.find(Runs(id=run_id, limit=1))
        if not found or found[0].schedule_id is None:
            raise UnknownRun(f"no run has the id {run_id!r:.60}")
        run = found[0]
        secrets = await self._vault.secrets(run.schedule_id or "")
        epoch = read_token(token, secrets, run_id, self._clock.now())
        if epoch is None:
            raise CallbackDenied
        if epoch != run.epoch:
            raise CallbackStale(f"attempt {epoch} is over: the run is {run.state} at attempt {run.epoch}")
        return run

    @staticmethod
    def _still(run: Run) -> Run:
        if run.state is not State.RUNNING:
            raise CallbackStale(f"the run is {run.state}: nothing of this attempt is waited for")
        return run

    async def _held(self, run_id: str, token: str) -> Run:
        return self._still(await self._run(run_id, token))

    async def _alive(self, run: Run, token: str) -> Standing:
        target = run.options.http if run.options is not None else None
        silence = 60_000 if target is None else target.silence
        left = int(token.split(".")[1]) - self._clock.now()
        ttl = max(1, min(silence, left))
        answer = await self._store.renew(run.owner or "", [(run.id, run.epoch)], ttl)
        if run.id not in answer.kept:
            raise CallbackStale(f"the lease of attempt {run.epoch} has ended")
        return Standing(run.state, ttl, answer.cancel.get(run.id))

    async def _end(self, run: Run, outcome: Outcome) -> Standing:
        now = self._clock.now()
        attempt = Attempt(run, None, _HANDLER, None, 0)
        attempt.began_at = run.started_at
        attempt.ms = max(0, now - (run.started_at or now))
        change = self._recorder.change_of(attempt, outcome, now)
        change = replace(change, events=tuple(replace(event, actor="agent") for event in change.events))
        result = await self._apply(change)
        if not result.ok:
            raise CallbackStale(f"attempt {run.epoch} is over")
        assert change.run is not None
        return Standing(change.run.state)
