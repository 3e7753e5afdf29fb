"""Division of a batch into parts. The changes of one part do not depend on each other, so their order is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainspring.model.change import Change, RunAbsent, ScheduleAt

#: Changes, each with its index in the batch.
IndexedChanges = list[tuple[int, Change]]


def split_independent(changes: Iterable[tuple[int, Change]]) -> Iterator[IndexedChanges]:
    """Yield the changes, each with its index in the batch, in consecutive parts, nearly always one part.

    A change that depends on a change of the current part begins the next part. It depends on an earlier change that may
    decide whether its guard holds. It also depends on an earlier change if one of the two touches a schedule that the
    other writes.
    """
    part = _Part()
    for index, change in changes:
        if not part.try_add(index, change):
            yield part.changes
            part = _Part()
            part.try_add(index, change)
    if part.changes:
        yield part.changes


class _Part:
    """A part of a batch under construction, and the rows and keys that its changes write."""

    def __init__(self) -> None:
        self.changes: IndexedChanges = []
        #: Ids of the rows that the part guards or inserts.
        self._rows: set[str] = set()
        #: Ids of the schedules that the part touches.
        self._touched: set[str] = set()
        #: Keys (`contested_keys`) that new runs of the part take.
        self._claimed_keys: set[tuple[str, str]] = set()
        #: Keys (`contested_keys`) of all other changes of the part. These may free their key.
        self._freed_keys: set[tuple[str, str]] = set()

    def try_add(self, index: int, change: Change) -> bool:
        """Add the change with its index in the batch and return True.

        If it depends on a change of this part, add nothing and return False.
        """
        guard = change.guard
        keys = contested_keys(change)
        inserts = isinstance(guard, RunAbsent)
        if self.changes and (self._has_rows_of(change) or any(self._has_key(key, inserts) for key in keys)):
            return False
        (self._claimed_keys if inserts else self._freed_keys).update(keys)
        if guard is not None:
            self._rows.add(guard.id)
        self._rows.update(run.id for run in change.runs)
        self._touched.update(change.touches)
        self.changes.append((index, change))
        return True

    def _has_rows_of(self, change: Change) -> bool:
        """Return True if this part writes the row that the change guards or a schedule that the change touches.

        Also return True if this part touches the schedule that the change guards.
        """
        guard = change.guard
        return (guard is not None and (guard.id in self._rows or guard.id in self._touched)) or (
            bool(change.touches) and not self._rows.isdisjoint(change.touches)
        )

    def _has_key(self, key: tuple[str, str], inserts: bool) -> bool:
        """Return True if a further change with the unique key or schedule name `key` must go into a later part.

        That is so if a change of this part may free the key, or if a new run of this part takes the key and the further
        change may free it. `inserts`: the further change inserts a new run. Two new runs with one key may be in one
        part: the statement that inserts them accepts the first.
        """
        return key in self._freed_keys or (not inserts and key in self._claimed_keys)


def contested_keys(change: Change) -> tuple[tuple[str, str], ...]:
    """Return (namespace, unique key or schedule name) for each of those that the change takes or may free.

    A renaming change takes a name and frees another. For a schedule name, "schedule " is put before the namespace, so
    that the pair differs from those of unique keys.
    """
    guard, schedule = change.guard, change.schedule
    if change.run is not None:
        key = guard.unique_key if isinstance(guard, RunAbsent) else change.run.unique_key
        return () if key is None else ((change.run.ns, key),)
    if schedule is None:
        return ()
    old_name = guard.old_name if isinstance(guard, ScheduleAt) else None
    names = (schedule.name,) if old_name is None else (schedule.name, old_name)
    return tuple(("schedule " + schedule.ns, name) for name in names)
