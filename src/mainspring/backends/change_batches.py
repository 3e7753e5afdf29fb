"""Parts of a batch: the changes of one part do not depend on each other, so a store may write them in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainspring.model.change import Change, RunAbsent

#: Changes, each with its index in the batch.
IndexedChanges = list[tuple[int, Change]]


def split_independent(changes: Iterable[tuple[int, Change]]) -> Iterator[IndexedChanges]:
    """Yield the changes, given with their indexes, in consecutive parts: as few as possible, nearly always one.

    A change comes in a later part than an earlier change that may decide whether its guard holds, or that writes a
    schedule which it touches.
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
    """A part under construction, and the rows and keys that its changes write."""

    def __init__(self) -> None:
        self.changes: IndexedChanges = []
        #: Ids of rows that are guarded or inserted, and of schedules that are touched.
        self._rows: set[str] = set()
        self._touched: set[str] = set()
        #: Keys, as `contested_key` returns them: of new runs, and of all other changes, which may give a key up.
        self._claimed_keys: set[tuple[str, str]] = set()
        self._freed_keys: set[tuple[str, str]] = set()

    def try_add(self, index: int, change: Change) -> bool:
        """Add the change with its index in the batch; return False, without adding it, if it depends on the part."""
        guard = change.guard
        key = contested_key(change)
        inserts = isinstance(guard, RunAbsent)
        if self.changes and (self._has_rows_of(change) or (key is not None and self._has_key(key, inserts))):
            return False
        if key is not None:
            (self._claimed_keys if inserts else self._freed_keys).add(key)
        if guard is not None:
            self._rows.add(guard.id)
        self._rows.update(run.id for run in change.runs)
        self._touched.update(change.touches)
        self.changes.append((index, change))
        return True

    def _has_rows_of(self, change: Change) -> bool:
        """Return True if the part writes the row that the change guards, or a schedule that the change touches."""
        guard = change.guard
        return (guard is not None and (guard.id in self._rows or guard.id in self._touched)) or (
            bool(change.touches) and not self._rows.isdisjoint(change.touches)
        )

    def _has_key(self, key: tuple[str, str], inserts: bool) -> bool:
        """Return True if a further change with this key must go into a later part.

        That is so if a change of this part may give the key up, or if a new run of this part takes the key and the
        further change may give it up. `inserts`: the further change guards a new run. Two new runs with one key may
        share a part: the statement that inserts them accepts the first.
        """
        return key in self._freed_keys or (not inserts and key in self._claimed_keys)


def contested_key(change: Change) -> tuple[str, str] | None:
    """Return the unique key or schedule name that a change takes or may give up, with its namespace; None without one.

    "schedule " stands before the namespace of a schedule name, so that no such name equals a unique key.
    """
    guard = change.guard
    if change.run is not None:
        key = guard.unique_key if isinstance(guard, RunAbsent) else change.run.unique_key
        return None if key is None else (change.run.ns, key)
    if change.schedule is not None:
        return ("schedule " + change.schedule.ns, change.schedule.name)
    return None
