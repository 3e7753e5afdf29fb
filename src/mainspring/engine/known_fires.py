"""Known fires: after a rewind, find the fires of a schedule that its cursor has not passed and that have a run."""

from __future__ import annotations

from mainspring.model.ids import first_id_at
from mainspring.model.instant import Ms
from mainspring.model.schedule import Schedule
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs, Store
from mainspring.rules.planning import MAX_RUNS_PER_CHANGE


async def find_known_fires(store: Store, schedule: Schedule, now: Ms) -> tuple[Ms, ...]:
    """Return the times of the schedule's fires after its cursor, up to its next planning or `now`, that have a run.

    The times are in order. Empty, without asking the store, unless the schedule was rewound and its cursor lies before
    the instant from which it was rewound.
    """
    if schedule.rewound is None or schedule.cursor >= schedule.rewound:
        return ()
    through = max(now, schedule.next_at or now)
    query = Runs(
        schedule_id=schedule.id,
        origin="fire",
        fired_since=schedule.cursor,
        oldest_first=True,
        after=first_id_at(schedule.cursor),
        limit=MAX_RUNS_PER_CHANGE,
    )
    found: list[Ms] = []
    async for run in iterate_rows(store, query, lambda run: run.id):
        assert run.fire_time is not None
        if run.fire_time > through:  # ids of fires sort by fire time
            break
        found.append(run.fire_time)
    return tuple(found)
