"""Fast path of `apply` for batches that only insert new runs: one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.postgres.database import Session
from mainspring.backends.postgres.fast.insert_runs_sql import bind
from mainspring.backends.postgres.rows import BODY, ID, body_rows, fresh_row, storable_text
from mainspring.model.change import Change, Result
from mainspring.model.event_codec import BulkEventEncoder
from mainspring.model.events import RunScheduled
from mainspring.model.instant import Ms
from mainspring.model.run import Run, differs_only_in_id_and_body

#: Results of a change without a guard, and of a change that inserted the run it guards. Such a run has one event.
_ACCEPTED, _INSERTED = Result("accepted"), Result("accepted", 1)


class RunInserts:
    """A batch that only inserts fresh runs (never started, cancelled, parked or ended) and their payloads.

    `rows`: a row of INSERTED_RUN_COLUMNS for each run, ready to be written.
    """

    def __init__(self, changes: Sequence[Change], rows: list[Any]) -> None:
        self._changes = changes
        self._rows = rows

    async def write(self, session: Session, results: list[Result], now: Ms | None) -> tuple[Ms, IndexedChanges]:
        """Insert the runs that do not exist, and set the results of the changes that are accepted.

        Returns the instant stamped on the events, and the refused changes, whose results the caller sets. `now`: the
        instant of a test; None: the server's time.
        """
        bodies = body_rows(body for change in self._changes for body in change.bodies)
        sql, parameters = bind(self._rows, bodies)
        row = await session.row(sql, now, *parameters)
        written = None if row["got"] == len(self._rows) else set(row["ids"] or ())
        refused: IndexedChanges = []
        for index, change in enumerate(self._changes):
            if change.guard is None:
                results[index] = _ACCEPTED
            elif written is None or change.guard.id in written:
                results[index] = _INSERTED
            else:
                refused.append((index, change))
        return row["now"], refused


def match_run_inserts(changes: Sequence[Change]) -> RunInserts | None:
    """Return the batch, ready to be written, if it only inserts fresh runs and their payloads; else None.

    A fresh run was never started, cancelled, parked or ended.
    """
    rows = RunInsertRows()
    for change in changes:
        if change.kind != "new_runs" or change.gates:
            return None
        if not rows.add(change, change.runs if change.run is None else (change.run,)):
            return None
    return RunInserts(changes, rows.rows)


class RunInsertRows:
    """Collects rows of INSERTED_RUN_COLUMNS.

    Runs that differ only in id and body from the last converted run copy its row, which is faster than to convert them.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.ids: set[str] = set()
        self._data = BulkEventEncoder()
        self._model: Run | None = None
        self._row: list[Any] = []

    def add(self, change: Change, runs: Sequence[Run]) -> bool:
        """Add a row for each of the runs that a change inserts, and return True.

        Return False if a run is not fresh (it was started, cancelled, parked or ended before) or was added before. The
        rows must not be used then: they may have a part of the change.
        """
        change_id = storable_text(change.id)
        for run, event in zip(runs, change.events, strict=True):
            assert isinstance(event, RunScheduled)
            if run.id in self.ids:
                return False
            if (
                self._model is not None
                and differs_only_in_id_and_body(run, self._model)
                and self._data.can_reuse(event)
            ):
                row = self._row.copy()
                row[ID], row[BODY] = storable_text(run.id), storable_text(run.body)
                row += (change_id, self._data.encode_next(event))
            elif self._set_model(run, event):
                row = [*self._row, change_id, self._data.encode_first(event)]
            else:
                return False
            self.ids.add(run.id)
            self.rows.append(row)
        return True

    def _set_model(self, run: Run, event: RunScheduled) -> bool:
        """Keep a run and its row, which following runs may copy, and return True.

        Return False if the run is not fresh: it was started, cancelled, parked or ended before. `event`: the run's
        `RunScheduled` event.
        """
        row = fresh_row(run, 1)
        if row is None:
            return False
        self._model, self._row = run, [*row, storable_text(event.actor)]
        return True
