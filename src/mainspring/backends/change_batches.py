"""Parts of a batch: the changes of one part do not depend on each other, so a store may write them in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainspring.model.change import Change, RunAbsent

#: Changes with their place in the batch.
IndexedChanges = list[tuple[int, Change]]


def split_independent(changes: Iterable[tuple[int, Change]]) -> Iterator[IndexedChanges]:
    """Yield the changes in as few parts as possible, nearly always one.

    A change whose guard may hold or fail depending on another change comes in a later part than that change.
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
        #: Keys that new runs claim, and keys of rows that may give theirs up.
        self._claimed_keys: set[tuple[str, str]] = set()
        self._freed_keys: set[tuple[str, str]] = set()

    def try_add(self, index: int, change: Change) -> bool:
        """Add the change and return True; return False if it depends on a change that is in the part already."""
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
        guard = change.guard
        return (guard is not None and (guard.id in self._rows or guard.id in self._touched)) or (
            bool(change.touches) and not self._rows.isdisjoint(change.touches)
        )

    def _has_key(self, key: tuple[str, str], inserts: bool) -> bool:
        """Return True if a new change with this key must go into a later part.

        That is so if a change of this part may give the key up, or if one claims it and the new change may give it up.
        Two inserts (`inserts`) may share a part: the statement accepts the first.
        """
        return key in self._freed_keys or (not inserts and key in self._claimed_keys)


def contested_key(change: Change) -> tuple[str, str] | None:
    """Return (namespace, unique key or schedule name) that the change takes or may give up, None without one."""
    guard = change.guard
    if change.run is not None:
        key = guard.unique_key if isinstance(guard, RunAbsent) else change.run.unique_key
        return None if key is None else (change.run.ns, key)
    if change.schedule is not None:
        return ("schedule " + change.schedule.ns, change.schedule.name)
    return None
