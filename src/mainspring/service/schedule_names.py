"""Names of new schedules: refuse those that no URL can hold, unless a stored schedule has the name already."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_schedule_name
from mainspring.ports.store import Schedules, Store
from mainspring.service.requests import ScheduleRequest


async def check_new_names(store: Store, wants: Iterable[ScheduleRequest]) -> None:
    """Raise InvalidInput for a name that `check_schedule_name` refuses and that no stored schedule has.

    Why not for stored ones: an earlier version took such names, and a program repeats its calls at every start.
    """
    for want in wants:
        if want.any_name:
            continue
        try:
            check_schedule_name(want.name)
        except InvalidInput:
            if not await store.find(Schedules(ns=want.ns, name=want.name, limit=1)):
                raise
