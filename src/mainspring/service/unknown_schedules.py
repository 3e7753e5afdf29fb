"""What the error says about the name of a schedule that does not exist."""

from __future__ import annotations

from mainspring.model.errors import suggest_nearest
from mainspring.model.instant import isoformat
from mainspring.ports.store import Schedules, Store


async def explain_unknown_schedule(store: Store, ns: str, key: str) -> str:
    """Return why no schedule in `ns` is called `key`: it was deleted, or there never was one, with a near name.

    Raises: StoreError.
    """
    if deleted := await store.find(Schedules(ns=ns, name=key, states=("deleted",), limit=1_000)):
        return f"the schedule {key!r} was deleted at {isoformat(max(row.updated_at for row in deleted))}"
    names = [row.name for row in await store.find(Schedules(ns=ns, limit=1_000))]
    return f"no schedule is called {key!r}. {suggest_nearest(key, names)}".strip()
