"""Declared definitions: what code declared last about each schedule, stored beside the schedules, and drifts from it.

A schedule that a person edited has the person's definition. The code's own is kept as a key-value entry, so that
`use_code` can apply it at any time, from any process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from mainspring.model.change import Body
from mainspring.model.events import ScheduleUpdated
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import DECLARED_KIND, KeyValue
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Events, KeyValues, Store
from mainspring.rules.drift import Drift, compare_definitions

#: Entries that one call to the store writes or reads.
ENTRIES_PER_CALL = 500


class DeclaredDefinition(Struct, frozen=True, omit_defaults=True):
    """What code declared about one schedule, as the entry stores it: all that a new revision needs."""

    spec: ScheduleSpec
    digest: str
    app: str
    version: str = ""
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    delay: Ms | None = None


class DeclaredDefinitions:
    """Reads and writes the declared definitions of a store. Thread: engine loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, ns: str, definitions: Mapping[str, DeclaredDefinition]) -> None:
        """Store what code declares about schedules, by name, where it is not stored already. Raises: StoreError."""
        entries = [
            KeyValue(kind=DECLARED_KIND, id=_entry_id(ns, name), data=msgspec.json.encode(one).decode())
            for name, one in definitions.items()
        ]
        for first in range(0, len(entries), ENTRIES_PER_CALL):
            chunk = entries[first : first + ENTRIES_PER_CALL]
            query = KeyValues(kind=DECLARED_KIND, ids=tuple(entry.id for entry in chunk), limit=len(chunk))
            known = {row.id: row.data for row in await self._store.find(query)}
            if changed := [entry for entry in chunk if known.get(entry.id) != entry.data]:
                await self._store.put(changed, replace=True)

    async def find(self, schedule: Schedule) -> DeclaredDefinition | None:
        """Return what code declared last about a schedule; None if no code declares it, or if that is not known."""
        if not schedule.app:
            return None
        query = KeyValues(kind=DECLARED_KIND, ids=(_entry_id(schedule.ns, schedule.name),), limit=1)
        found = await self._store.find(query)
        return msgspec.json.decode(found[0].data, type=DeclaredDefinition) if found else None

    async def find_drift(self, schedule: Schedule, code: ScheduleSpec | None = None) -> Drift | None:
        """Return how a schedule that a person edited differs from the code's definition; None if it does not.

        `code` None: the definition that code declared last. Raises: StoreError.
        """
        if not schedule.drifted or schedule.state == "deleted":
            return None
        if code is None:
            declared = await self.find(schedule)
            code = None if declared is None else declared.spec
        words = None if code is None else compare_definitions(code, schedule.spec)
        if words is None:
            return None
        edited_at = schedule.updated_at
        query = Events(schedule_id=schedule.id, types=("ScheduleUpdated",), limit=1_000)
        async for event in iterate_rows(self._store, query, lambda event: str(event.seq)):
            edited_at = event.at if isinstance(event, ScheduleUpdated) else edited_at
        return Drift(schedule.ns, schedule.name, *words, schedule.owner, edited_at)


def _entry_id(ns: str, name: str) -> str:
    return f"{ns}/{name}"
