"""The next run of a schedule: its first coming fire that will become a run and may begin inside the window."""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.model.schedule import Schedule
from mainspring.rules.planning import is_fixed_delay, next_fire, start_offset
from mainspring.rules.windows import is_open, next_opening

#: Fires outside the window that are examined: more than a year of a daily fire.
MAX_EXAMINED_FIRES = 400


def find_next_run(schedule: Schedule) -> Ms | None:
    """Return the fire time of a schedule's next run. None: it is not active, no run will come, or none is known yet.

    With a fixed delay, the next run is not known while a run is open. Fires outside the window are passed over. None
    also if more than `MAX_EXAMINED_FIRES` of the coming fires lie outside it.
    """
    spec, fire = schedule.spec, schedule.next_at
    if schedule.state != "active" or fire is None:
        return None
    window = spec.options.window if spec.options is not None else None
    fixed = is_fixed_delay(spec)
    if not fixed and (window is not None or spec.end is not None):
        fire = next_fire(spec, schedule.anchor, fire - 1)
    if window is None or fixed:
        return fire
    for _ in range(MAX_EXAMINED_FIRES):
        if fire is None:
            return None
        begins = fire + start_offset(schedule.id, spec, fire)
        if is_open(window, begins):
            return fire
        opening = next_opening(window, begins)
        if opening is None:
            return None
        fire = next_fire(spec, schedule.anchor, max(fire, opening - spec.jitter - spec.spread - 1))
    return None
