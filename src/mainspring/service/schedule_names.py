"""Names of schedules: refuse new ones that no URL can hold, and renames that cannot be."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.model.errors import DeclaredInCode, InvalidInput, ScheduleConflict
from mainspring.model.ids import check_schedule_name
from mainspring.model.schedule import Schedule
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


async def check_rename(store: Store, schedule: Schedule, name: str) -> None:
    """Raise an error if the schedule cannot get the name `name`; return if it can, or has it.

    Raises: DeclaredInCode, because a program that declares the schedule would create it again under the old name;
    ScheduleConflict if another schedule has the name; InvalidInput if no URL can hold it.
    """
    if name == schedule.name:
        return
    check_schedule_name(name)
    if schedule.app or schedule.origin == "code":
        program = f"the program {schedule.app!r}" if schedule.app else "a program"
        problem = f"{program} declares the schedule {schedule.name!r} and would create it again under this name"
        raise DeclaredInCode("name", problem, "Change the name in its code")
    found = await store.find(Schedules(ns=schedule.ns, name=name, limit=1))
    if found and found[0].id != schedule.id:
        raise name_taken(found[0], "Choose another name")


def name_taken(holder: Schedule, fix: str) -> ScheduleConflict:
    """Return the error for a name that `holder` has. `fix`: what the caller can do."""
    return ScheduleConflict("name", f"a schedule called {holder.name!r} exists: {holder.id}", fix)
