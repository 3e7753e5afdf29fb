"""Transactional enqueue: runs that are inserted on a caller's connection exist if and only if the caller commits."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.model.change import Body, Change, Result
from mainspring.model.errors import InvalidInput
from mainspring.model.ids import unshared_body_id
from mainspring.model.run import Run
from mainspring.ports.store_extras import TransactionalStore
from mainspring.runtime.runtime import Runtime
from mainspring.service.commands import MAX_ROWS_PER_COMMIT, stored_run
from mainspring.service.requests import NewRun

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost

#: For each run to store: that run with True; if an open run has its unique key, the open run with False.
Stored = list[tuple[Run, bool]]


async def join(host: EngineHost, connection: Any, news: list[NewRun]) -> Stored:
    """Insert the runs `news` in the open transaction of `connection`. Thread: the caller's.

    Return (run, True) for each of them; but if an open run has the same unique key, return (that run, False) in its
    place. If the store needs it, the runs' gates are stored before, in a commit of their own. Raises: InvalidInput if
    the store cannot join a caller's transaction.
    """
    runtime = await host.open_runtime()
    store = _require_joinable(runtime)
    if (gates := _gate_change(store, news)) is not None:
        await runtime.submitter.apply(replace(gates, id=runtime.change_id()))
    stored: Stored = []
    for runs, changes in _make_changes(runtime, store, news):
        answer = store.join(connection, changes, blocking=False)
        stored += _pair_results(runs, changes, await answer if inspect.isawaitable(answer) else answer)
    return stored


def join_blocking(host: EngineHost, connection: Any, news: list[NewRun]) -> Stored:
    """Insert the runs `news` in the open transaction of `connection`, whose driver blocks.

    Return (run, True) for each of them; but if an open run has the same unique key, return (that run, False) in its
    place. If the store needs it, the runs' gates are stored before, in a commit of their own. Raises: InvalidInput if
    the store cannot join a caller's transaction. Thread: the caller's, which runs no event loop.
    """
    runtime = host.block_on(host.open_runtime(), "task.enqueue(…)")
    store = _require_joinable(runtime)
    if (gates := _gate_change(store, news)) is not None:
        runtime.submitter.apply_blocking(replace(gates, id=runtime.change_id()))
    stored: Stored = []
    for runs, changes in _make_changes(runtime, store, news):
        answer = store.join(connection, changes, blocking=True)
        assert isinstance(answer, list)
        stored += _pair_results(runs, changes, answer)
    return stored


def _require_joinable(runtime: Runtime) -> TransactionalStore:
    """Return the runtime's store. Raises: InvalidInput if it cannot join a caller's transaction."""
    store = runtime.store
    if not isinstance(store, TransactionalStore):
        raise InvalidInput(
            "connection",
            f"{type(store).__name__} cannot join a caller's transaction",
            "Use a postgresql:// or sqlite:/// store, or enqueue without connection=",
        )
    return store


def _gate_change(store: TransactionalStore, news: list[NewRun]) -> Change | None:
    """Return a change, without an id yet, that stores the gates of the runs before the runs themselves.

    Return None if there are no gates, or no other connection can write while the caller's transaction is open. Why: a
    gate inserted in that transaction would block other connections. An existing gate with the right limit is only read.
    """
    gates = {gate.name: gate for new in news for gate in new.gates}
    return Change(id="", gates=tuple(gates.values())) if gates and store.others_write else None


def _make_changes(
    runtime: Runtime, store: TransactionalStore, news: list[NewRun]
) -> Iterable[tuple[list[Run], list[Change]]]:
    """Yield the runs in chunks, each with the changes that insert it.

    There is one change for the whole chunk if no run has a unique key, else one change for each run.
    """
    if store.others_write:
        news = _with_unshared_bodies(news)
    for start in range(0, len(news), MAX_ROWS_PER_COMMIT):
        chunk = news[start : start + MAX_ROWS_PER_COMMIT]
        if len(chunk) > 1 and all(new.event.unique_key is None for new in chunk):
            change = runtime.commands.make_insert_change(chunk)
            yield list(change.runs), [change]
        else:
            pairs = [runtime.commands.make_run_and_change(new) for new in chunk]
            yield [run for run, _ in pairs], [change for _, change in pairs]


def _with_unshared_bodies(news: list[NewRun]) -> list[NewRun]:
    """Return the runs `news` without their gates, which are stored already, and with new ids of their payloads.

    Only the runs in `news` use these ids; equal payloads among them share one. Why: another connection that stored an
    equal payload under an equal id would wait for the caller's commit.
    """
    own: dict[str, Body] = {}
    answer: list[NewRun] = []
    for new in news:
        bodies = tuple(
            own.setdefault(body.id, Body(unshared_body_id(body.id, new.event.run_id or ""), body.data))
            for body in new.bodies
        )
        event = replace(new.event, body=bodies[0].id) if bodies else new.event
        answer.append(NewRun(event, bodies))
    return answer


def _pair_results(runs: list[Run], changes: list[Change], results: list[Result]) -> Stored:
    """Return (run, True) for each run of a chunk; (open run, False) if an open run has its unique key.

    `results` are the results of the `changes` that inserted the chunk.
    """
    if len(changes) < len(runs):  # one change inserted all of them, and it has no guard
        return [(run, True) for run in runs]
    return [stored_run(run, result) for run, result in zip(runs, results, strict=True)]
