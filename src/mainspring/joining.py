"""Transactional enqueue: runs on a caller's own connection, which exist if and only if the caller commits."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.engine.runtime import Runtime
from mainspring.model.change import Body, Change, Result
from mainspring.model.errors import InvalidInput
from mainspring.model.ids import own_body_id
from mainspring.model.run import Run
from mainspring.ports.joining import Joins
from mainspring.service import CHUNK, NewRun, created
from mainspring.sync import block_on

if TYPE_CHECKING:
    from mainspring.host import EngineHost

Stored = list[tuple[Run, bool]]


async def join(host: EngineHost, connection: Any, news: list[NewRun]) -> Stored:
    """Write the runs on the caller's connection, here and not on the engine's loop; each with whether it is new."""
    runtime = await host.opened()
    store = _joinable(runtime)
    if (gates := _gates(store, news)) is not None:
        await runtime.crossing.apply(replace(gates, id=runtime.change_id()))
    stored: Stored = []
    for runs, changes in _births(runtime, store, news):
        answer = store.join(connection, changes, blocking=False)
        stored += _stored(runs, changes, await answer if inspect.isawaitable(answer) else answer)
    return stored


def join_blocking(host: EngineHost, connection: Any, news: list[NewRun]) -> Stored:
    """The same for a thread without a loop."""
    runtime = block_on(host.opened(), "task.enqueue(…)")
    store = _joinable(runtime)
    if (gates := _gates(store, news)) is not None:
        runtime.crossing.apply_blocking(replace(gates, id=runtime.change_id()))
    stored: Stored = []
    for runs, changes in _births(runtime, store, news):
        answer = store.join(connection, changes, blocking=True)
        assert isinstance(answer, list)
        stored += _stored(runs, changes, answer)
    return stored


def _joinable(runtime: Runtime) -> Joins:
    store = runtime.store
    if not isinstance(store, Joins):
        raise InvalidInput(
            "connection",
            f"{type(store).__name__} cannot join a caller's transaction",
            "Use a postgresql:// or sqlite:/// store, or enqueue without connection=",
        )
    return store


def _gates(store: Joins, news: list[NewRun]) -> Change | None:
    """What has to be stored before; a gate that is there and as it should be costs nothing but the question."""
    gates = {gate.name: gate for new in news for gate in new.gates}
    return Change(id="", gates=tuple(gates.values())) if gates and store.others_write else None


def _births(runtime: Runtime, store: Joins, news: list[NewRun]) -> Iterable[tuple[list[Run], list[Change]]]:
    """Runs and the changes that store them, a thousand at a time; one change for all that have no unique key."""
    if store.others_write:
        news = _with_own_bodies(news)
    for start in range(0, len(news), CHUNK):
        chunk = news[start : start + CHUNK]
        if len(chunk) > 1 and all(new.event.unique_key is None for new in chunk):
            change = runtime.commands.births(chunk)
            yield list(change.runs), [change]
        else:
            pairs = [runtime.commands.birth(new) for new in chunk]
            yield [run for run, _ in pairs], [change for _, change in pairs]


def _with_own_bodies(news: list[NewRun]) -> list[NewRun]:
    """The same runs, with gates left out and payloads that nobody else stores; equal ones among them are one."""
    own: dict[str, Body] = {}
    answer: list[NewRun] = []
    for new in news:
        bodies = tuple(
            own.setdefault(body.id, Body(own_body_id(body.id, new.event.run_id or ""), body.data))
            for body in new.bodies
        )
        event = replace(new.event, body=bodies[0].id) if bodies else new.event
        answer.append(NewRun(event, bodies))
    return answer


def _stored(runs: list[Run], changes: list[Change], results: list[Result]) -> Stored:
    if len(changes) < len(runs):  # one change for all of them, and it has no guard
        return [(run, True) for run in runs]
    return [created(run, result) for run, result in zip(runs, results, strict=True)]
