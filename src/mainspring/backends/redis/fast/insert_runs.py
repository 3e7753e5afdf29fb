"""Fast path of `apply`: insert runs that only wait for a worker, by a short script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.backends.redis.database import Argument, Database
from mainspring.backends.redis.rows import encode, encode_event_rest, encode_run_parts, queue_name
from mainspring.backends.redis.scripts import load
from mainspring.model.change import Change, Result
from mainspring.model.events import Event
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.store import Applied

INSERT_RUNS = load("apply", "insert_runs")
#: The largest number of runs in one call: Lua's unpack() takes some thousand values, and a run needs several.
_MAX_BATCH_RUNS = 1_000
_ACCEPTED, _INSERTED = Result("accepted"), Result("accepted", 1)


async def insert_runs(db: Database, changes: Sequence[Change], now: Ms | None) -> Applied | None:
    """Insert the runs of a batch, and return the results; None, with nothing written, if the batch needs lua/apply.lua.

    A batch needs lua/apply.lua if it is empty, has more than _MAX_BATCH_RUNS runs, or has a change that does more than
    insert runs that wait for a worker. It also needs that script if two of its runs have one id or one unique key, if
    one of its runs exists already, or if another open run holds one of its unique keys. `now`: the instant of a test;
    None: the server's time.
    """
    batch = _InsertBatch()
    for change in changes:
        if not batch.add(change):
            return None
    if not 0 < len(batch.ids) <= _MAX_BATCH_RUNS:
        return None
    store_now, exist = await db.run_write(INSERT_RUNS, db.now(now), batch.pack(), *batch.arguments)
    if exist:
        return None
    return Applied(store_now, [_ACCEPTED if change.guard is None else _INSERTED for change in changes])


class _InsertBatch:
    """Arguments of lua/insert_runs.lua, gathered from changes. A run's position is its number in the batch, from 1."""

    def __init__(self) -> None:
        #: Run id → position.
        self.ids: dict[str, int] = {}
        #: Three arguments for each run: its header, its other fields, its event.
        self.arguments: list[Argument] = []
        #: Name of a queue → positions of its runs, and the ready time of each run.
        self._queues: dict[str, tuple[list[int], list[str]]] = {}
        #: Namespace → positions of its runs.
        self._namespaces: dict[str, list[int]] = {}
        #: Namespace NUL unique key → position of the run that has it.
        self._keys: dict[str, int] = {}
        #: Payload id → number of runs that use the payload; payload id → its text.
        self._uses: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def add(self, change: Change) -> bool:
        """Add the runs of a change and return True; return False if lua/insert_runs.lua cannot write the change.

        After False the batch must not be used, because a part of the change may have been added.
        """
        runs = _runs_of_insert(change)
        if not runs:
            return False
        for run, event in zip(runs, change.events, strict=True):
            if not self._add_run(run, event, change.id):
                return False
        self._texts.update((body.id, body.data) for body in change.bodies)
        return True

    def _add_run(self, run: Run, event: Event, change: str) -> bool:
        """Add one run with its event and return True; return False if lua/insert_runs.lua cannot insert the run.

        The script inserts only runs that wait for a worker and belong to no schedule. No two of them may have one id or
        one unique key. `change`: the id of the change that inserts the run.
        """
        if run.id in self.ids or run.state not in CLAIMABLE or run.schedule_id is not None:
            return False
        if run.owner is not None or run.parked_on is not None:
            return False
        position = len(self.ids) + 1
        if run.unique_key is not None:
            key = f"{run.ns}\0{run.unique_key}"
            if key in self._keys:
                return False
            self._keys[key] = position
        self.ids[run.id] = position
        front, _, back = encode_run_parts(run, 1, 1)
        self.arguments += (front, back, encode_event_rest(event, change))
        positions, times = self._queues.setdefault(queue_name(run), ([], []))
        positions.append(position)
        times.append(str(run.ready_at))
        self._namespaces.setdefault(run.ns, []).append(position)
        if run.body is not None:
            self._uses[run.body] = self._uses.get(run.body, 0) + 1
        return True

    def pack(self) -> bytes:
        """Return the argument of lua/insert_runs.lua about all runs, encoded.

        In a call of the script it comes before the items of `arguments`.
        """
        queues = [(name, *rows) for name, rows in self._queues.items()]
        bodies: list[Any] = [(body, count, self._texts.get(body)) for body, count in self._uses.items()]
        keys = (list(self._keys), list(self._keys.values()))
        return encode((list(self.ids), queues, list(self._namespaces.items()), bodies, *keys))


def _runs_of_insert(change: Change) -> tuple[Run, ...]:
    """Return the runs that a change inserts, if lua/insert_runs.lua may be able to insert them, else ().

    The result is () for a change that does more than insert runs, that has gates to insert, or that inserts runs with
    unique keys without a guard on them.
    """
    if change.kind != "new_runs" or change.gates:
        return ()
    if change.run is not None:
        return (change.run,)
    return () if any(run.unique_key is not None for run in change.runs) else change.runs
