"""Bulk creation of schedules for `ms.schedule_many`: read definitions from items, and store them a chunk at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from mainspring.app.engine_host import EngineHost
from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.model.policies import OnConflict
from mainspring.rules.definition import digest_of
from mainspring.rules.triggers.every import Every
from mainspring.service.commands import MAX_ROWS_PER_COMMIT
from mainspring.service.requests import ScheduleRequest

#: The definition of an item with one of these options is not copied for the next item. Why: the value may be an object
#: that the caller changes, or its meaning depends on the schedule's name or on the time.
_NEVER_SHARED = frozenset({"args", "kwargs", "payload", "cron", "delay", "at"})


class BulkReader:
    """Turns the items of a bulk creation into schedule definitions.

    If an item differs from the item before only in name and interval, the definition before is copied with the new
    name and interval. Why: a copy is quicker than parsing all options.
    """

    def __init__(self, make_request: Callable[..., ScheduleRequest], task: Any) -> None:
        """`make_request` makes a definition from options. `task`: the task or HTTP agent of items that name none."""
        self._make_request = make_request
        self._task = task
        self._last: tuple[Mapping[str, Any], ScheduleRequest] | None = None

    def read(self, number: int, item: Mapping[str, Any]) -> ScheduleRequest:
        """Return the definition that `item` states. `number` is its place among the items, from 0, for errors.

        Raises: InvalidInput, which names the item by its number; UnknownTask.
        """
        if not isinstance(item, (dict, Mapping)) or not isinstance(item.get("name"), str):
            raise InvalidInput(f"items[{number}]", f"{item!r:.80} has no name", 'Write {"name": "…", "cron": "…"}')
        try:
            request = self._vary_last(item) or self._make_request(**{"task": self._task, **item})
        except InvalidInput as error:
            raise InvalidInput(f"items[{number}].{error.field}", error.problem, error.fix) from None
        # A copy, because the caller may fill one dictionary repeatedly.
        self._last = (dict(item), request) if _NEVER_SHARED.isdisjoint(item) else None
        return request

    def _vary_last(self, item: Mapping[str, Any]) -> ScheduleRequest | None:
        """Return a copy of the last definition, with the name and the interval of `item`.

        Return None if there is no definition to copy, or if `item` differs from the last item in anything else.
        """
        if self._last is None:
            return None
        before, last = self._last
        if len(item) != len(before):
            return None
        spec = last.spec
        for key, value in item.items():
            known = before.get(key)
            if key == "name" or value is known:
                continue
            if key != "trigger" or not _is_same_kind_of_interval(value, known):
                return None
            spec = replace(spec, trigger=value.spec)
        digest = last.digest if spec is last.spec else digest_of(spec)
        return replace(last, name=check_name(item["name"]), spec=spec, digest=digest)


def _is_same_kind_of_interval(value: Any, other: Any) -> bool:
    """Return True if both are `Every` triggers, either both with a fixed delay or both without."""
    return type(value) is Every and type(other) is Every and value.spec.fixed_delay == other.spec.fixed_delay


async def create_many(
    host: EngineHost, reader: BulkReader, items: Iterable[Mapping[str, Any]], on_conflict: OnConflict
) -> int:
    """Create a schedule for each item, up to `MAX_ROWS_PER_COMMIT` in a commit, and return how many are new.

    `on_conflict`: what to do if a name exists with another definition. The items of the next commit are read while a
    commit is stored. An error of an item or of the store ends the work; schedules stored before stay.
    """

    async def store(requests: list[ScheduleRequest]) -> int:
        return await host.call(lambda runtime: runtime.commands.create_many(requests, on_conflict))

    created = 0
    storing: asyncio.Task[int] | None = None
    numbered = enumerate(items)
    try:
        while requests := [
            reader.read(*numbered_item) for numbered_item in itertools.islice(numbered, MAX_ROWS_PER_COMMIT)
        ]:
            if storing is not None:
                created += await storing
            storing = asyncio.create_task(store(requests))
            await asyncio.sleep(0)
    finally:
        if storing is not None:
            created += await storing
    return created
