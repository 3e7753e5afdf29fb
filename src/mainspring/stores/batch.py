"""A batch in parts whose changes do not depend on each other, so that each part can be written in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainspring.model.change import Change, RunAbsent

Indexed = list[tuple[int, Change]]


def independent(changes: Iterable[tuple[int, Change]]) -> Iterator[Indexed]:
    """As few parts as possible, nearly always one; a change that could be answered differently comes in a later one."""
    part = _Part()
    for index, change in changes:
        if not part.take(index, change):
            yield part.changes
            part = _Part()
            part.take(index, change)
    if part.changes:
        yield part.changes


class _Part:
    def __init__(self) -> None:
        self.changes: Indexed = []
        self._rows: set[str] = set()
        self._touched: set[str] = set()
        self._wanted: set[tuple[str, str]] = set()
        self._freed: set[tuple[str, str]] = set()

    def take(self, index: int, change: Change) -> bool:
        guard = change.guard
        key = contested(change)
        absent = isinstance(guard, RunAbsent)
        if self.changes and (
            (guard is not None and (guard.id in self._rows or guard.id in self._touched))
            or (key is not None and (key in self._freed or (not absent and key in self._wanted)))
            or (change.touches and not self._rows.isdisjoint(change.touches))
        ):
            return False
        if key is not None:
            (self._wanted if absent else self._freed).add(key)
        if guard is not None:
            self._rows.add(guard.id)
        self._rows.update(run.id for run in change.runs)
        self._touched.update(change.touches)
        self.changes.append((index, change))
        return True


def contested(change: Change) -> tuple[str, str] | None:
    """What a change may take from, or leave to, another: a unique key, or a schedule's name."""
    guard = change.guard
    if change.run is not None:
        key = guard.unique_key if isinstance(guard, RunAbsent) else change.run.unique_key
        return None if key is None else (change.run.ns, key)
    if change.schedule is not None:
        return ("schedule " + change.schedule.ns, change.schedule.name)
    return None
