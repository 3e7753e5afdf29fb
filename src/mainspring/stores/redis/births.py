"""New runs by the shortest way: when a batch brings nothing else, a small script writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.events import Event, RunScheduled
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.store import Applied
from mainspring.stores.redis.database import Database, Word
from mainspring.stores.redis.rows import encode, event_rest, queue_name, run_parts
from mainspring.stores.redis.scripts import load

BIRTHS = load("apply", "births")
#: So many fit into one command of a script.
_MOST = 1_000
_ACCEPTED, _BORN = Result("accepted"), Result("accepted", 1)


async def births(db: Database, changes: Sequence[Change], now: Ms | None) -> Applied | None:
    """Write the batch, if it is nothing but births and none of the runs exists; else None, and nothing is done."""
    batch = _Births()
    for change in changes:
        if not batch.take(change):
            return None
    if not 0 < len(batch.ids) <= _MOST:
        return None
    wall, exist = await db.write(BIRTHS, db.now(now), batch.packed(), *batch.words)
    if exist:
        return None
    return Applied(wall, [_ACCEPTED if change.guard is None else _BORN for change in changes])


class _Births:
    """What lua/births.lua is told."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.words: list[Word] = []
        self._queues: dict[str, tuple[list[int], list[str]]] = {}
        self._spaces: dict[str, list[int]] = {}
        self._keys: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def take(self, change: Change) -> bool:
        """False when the change is more than the birth of runs that only wait for a worker."""
        if change.spans or change.touches or change.releases or change.gates or change.schedule is not None:
            return False
        guard, run = change.guard, change.run
        if type(guard) is RunAbsent:
            if run is None or change.runs or guard.id != run.id or guard.unique_key != run.unique_key:
                return False
            born: tuple[Run, ...] = (run,)
        elif guard is None and run is None and change.runs:
            born = change.runs
            if any(one.unique_key is not None for one in born):
                return False
        else:
            return False
        if len(born) != len(change.events):
            return False
        for one, event in zip(born, change.events, strict=True):
            if not self._add(one, event, change.id):
                return False
        for body in change.bodies:
            if body.id not in self._uses:
                return False
            self._texts[body.id] = body.data
        return True

    def _add(self, run: Run, event: Event, change: str) -> bool:
        if type(event) is not RunScheduled or event.run_id != run.id or run.id in self.ids:
            return False
        if run.state not in CLAIMABLE or run.schedule_id is not None:
            return False
        if run.owner is not None or run.parked_on is not None:
            return False
        place = len(self.ids) + 1
        if run.unique_key is not None:
            key = f"{run.ns}\0{run.unique_key}"
            if key in self._keys:
                return False
            self._keys[key] = place
        self.ids[run.id] = place
        front, _, back = run_parts(run, 1, 1)
        self.words += (front, back, event_rest(event, change))
        places, times = self._queues.setdefault(queue_name(run), ([], []))
        places.append(place)
        times.append(str(run.ready_at))
        self._spaces.setdefault(run.ns, []).append(place)
        if run.body is not None:
            self._uses[run.body] = self._uses.get(run.body, 0) + 1
        return True

    def packed(self) -> bytes:
        queues = [(name, *rows) for name, rows in self._queues.items()]
        bodies: list[Any] = [(body, count, self._texts.get(body)) for body, count in self._uses.items()]
        keys = (list(self._keys), list(self._keys.values()))
        return encode((list(self.ids), queues, list(self._spaces.items()), bodies, *keys))
