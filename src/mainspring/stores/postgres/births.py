"""New runs by the shortest way: when a batch brings nothing else, it is one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.events import BirthData, RunScheduled
from mainspring.model.instant import Ms
from mainspring.model.run import OPEN, Run, alike
from mainspring.stores.batch import Indexed
from mainspring.stores.postgres.births_sql import bind
from mainspring.stores.postgres.database import Session
from mainspring.stores.postgres.rows import BODY, ID, body_rows, fresh_row, plain_text

_ACCEPTED, _BORN = Result("accepted"), Result("accepted", 1)


class Births:
    """A batch of nothing but births."""

    def __init__(self, changes: Sequence[Change], rows: list[Any]) -> None:
        self._changes = changes
        self._rows = rows

    async def write(self, session: Session, results: list[Result], now: Ms | None) -> tuple[Ms, Indexed]:
        """Write what is not there yet; the time, and the changes that were refused."""
        bodies = body_rows(body for change in self._changes for body in change.bodies)
        sql, parameters = bind(self._rows, bodies)
        row = await session.row(sql, now, *parameters)
        written = None if row["got"] == len(self._rows) else set(row["ids"] or ())
        refused: Indexed = []
        for index, change in enumerate(self._changes):
            if change.guard is None:
                results[index] = _ACCEPTED
            elif written is None or change.guard.id in written:
                results[index] = _BORN
            else:
                refused.append((index, change))
        return row["now"], refused


def births(changes: Sequence[Change]) -> Births | None:
    """The batch, if it is nothing but births of fresh runs and their payloads."""
    rows = BirthRows()
    for change in changes:
        guard, born = change.guard, change.runs
        if change.spans or change.touches or change.releases or change.gates or change.schedule is not None:
            return None
        if type(guard) is RunAbsent:
            if change.run is None or born or guard.id != change.run.id or guard.unique_key != change.run.unique_key:
                return None
            born = (change.run,)
        elif guard is not None or change.run is not None or not born:
            return None
        if len(born) != len(change.events) or not _carried(change, (run.body for run in born)):
            return None
        if not rows.add(change, born):
            return None
    return Births(changes, rows.rows)


class BirthRows:
    """Rows of `BIRTH_COLUMNS`; of runs that are alike the first is looked at, the others copy its row."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.ids: set[str] = set()
        self._data = BirthData()
        self._model: Run | None = None
        self._row: list[Any] = []

    def add(self, change: Change, born: Sequence[Run]) -> bool:
        """A row for each of the change's runs; False when one of them is not simply born."""
        change_id = plain_text(change.id)
        for run, event in zip(born, change.events, strict=True):
            if type(event) is not RunScheduled or event.run_id != run.id or run.id in self.ids:
                return False
            if self._model is not None and alike(run, self._model) and self._data.follows(event):
                row = self._row.copy()
                row[ID], row[BODY] = plain_text(run.id), plain_text(run.body)
                row += (change_id, self._data.next(event))
            elif self._look_at(run, event):
                row = [*self._row, change_id, self._data.first(event)]
            else:
                return False
            self.ids.add(run.id)
            self.rows.append(row)
        return True

    def _look_at(self, run: Run, event: RunScheduled) -> bool:
        row = fresh_row(run, 1)
        if row is None or run.state not in OPEN or (event.ns, event.schedule_id) != (run.ns, run.schedule_id):
            return False
        if event.v != 1 or event.epoch is not None or event.attempt is not None or event.owner is not None:
            return False
        self._model, self._row = run, [*row, plain_text(event.actor)]
        return True


def _carried(change: Change, named: Iterable[str | None]) -> bool:
    """True when every payload belongs to a run of the change, so that it comes and stays away with it."""
    if not change.bodies:
        return True
    names = set(named)
    return all(body.id in names for body in change.bodies)
