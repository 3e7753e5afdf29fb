"""The contract of `apply` on the names of schedules: renames, the names that they free, and two claims of one name."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mainspring.model.change import Change
from mainspring.model.events import ScheduleCreated, ScheduleDeleted, ScheduleUpdated
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Page, Schedules
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    make_schedule,
    schedule_change,
)


def rename_change(ids: Ids, old: Schedule, name: str) -> Change:
    """Return a change that renames a schedule, if its row is still `old`."""
    revision = old.revision + 1
    event = ScheduleUpdated(
        schedule_id=old.id, revision=revision, spec=old.spec, anchor=old.anchor, cursor=old.cursor, name=name
    )
    return schedule_change(ids, old, event, revision=revision, name=name)


class ApplyRenames(ContractBase):
    """Tests of the guard `ScheduleAt` of changes that rename a schedule."""

    async def _names(self, b: StoreBench) -> dict[str, str]:
        """Return name → id of the schedules that are not deleted; a search by name must find the same."""
        rows = await b.store.find(Schedules(ns="default"))
        found = {row.name: await b.store.find(Schedules(ns="default", name=row.name)) for row in rows}
        assert {name: [one.id for one in ones] for name, ones in found.items()} == {row.name: [row.id] for row in rows}
        return {row.name: row.id for row in rows}

    @on_store
    async def test_a_rename_frees_the_old_name(self, b: StoreBench) -> None:
        row = await b.schedule(name="old")
        change = rename_change(b.ids, row, "new")
        (result,) = await b.apply(change, now=T0 + 5)
        assert (result.status, result.n) == ("accepted", 2)
        assert await b.schedule_row(row.id) == replace(row, name="new", n=2, revision=2, updated_at=T0 + 5)
        assert await self._names(b) == {"new": row.id}
        assert await b.store.find(Schedules(ns="default", name="old")) == []
        (again,) = await b.apply(change, now=T0 + 6)
        assert again.status == "repeated"
        other = await b.schedule(name="old")
        assert await self._names(b) == {"new": row.id, "old": other.id}
        # a deletion of the renamed schedule frees its new name only
        row = await b.schedule_row(row.id)
        await b.accept(schedule_change(b.ids, row, ScheduleDeleted(schedule_id=row.id), state="deleted", next_at=None))
        assert await self._names(b) == {"old": other.id}
        assert (await b.schedule(name="new")).id in (await self._names(b)).values()

    @on_store
    async def test_a_rename_is_refused_if_the_schedule_changed(self, b: StoreBench) -> None:
        row = await b.schedule(name="old")
        await b.accept(rename_change(b.ids, row, "new"))
        (result,) = await b.apply(rename_change(b.ids, row, "newer"))
        assert (result.status, result.current) == ("refused", await b.schedule_row(row.id))
        assert await self._names(b) == {"new": row.id}

    @on_store
    async def test_a_rename_is_refused_if_the_name_is_taken(self, b: StoreBench) -> None:
        row, holder = await b.schedule(name="old"), await b.schedule(name="taken")
        await b.schedule(name="elsewhere", ns="two")
        change = rename_change(b.ids, row, "taken")
        (result,) = await b.apply(change)
        assert (result.status, result.current) == ("refused", row)
        assert await self._names(b) == {"old": row.id, "taken": holder.id}
        assert len(await b.events(schedule_id=row.id)) == 1
        await b.accept(rename_change(b.ids, row, "elsewhere"))  # names of other namespaces do not matter
        deleted = ScheduleDeleted(schedule_id=holder.id)
        await b.accept(schedule_change(b.ids, holder, deleted, state="deleted", next_at=None))
        row = await b.schedule_row(row.id)
        await b.accept(rename_change(b.ids, row, "taken"))  # nor does that of a deleted schedule

    @on_store
    async def test_an_edit_that_keeps_the_name_is_not_refused(self, b: StoreBench) -> None:
        row = await b.schedule(name="same")
        await b.accept(schedule_change(b.ids, row, revision=2))
        assert await self._names(b) == {"same": row.id}

    @on_store
    async def test_of_two_renames_to_one_name_one_wins(self, b: StoreBench) -> None:
        rows = [await b.schedule(name=f"old {i}") for i in range(2)]
        results = await b.apply(*(rename_change(b.ids, row, "new") for row in rows))
        assert [result.status for result in results] == ["accepted", "refused"]
        assert await self._names(b) == {"new": rows[0].id, "old 1": rows[1].id}

    @on_store
    async def test_of_renames_at_once_to_one_name_one_wins(self, b: StoreBench) -> None:
        rows = [await b.schedule(name=f"old {i}") for i in range(4)]
        changes = [
            *(rename_change(b.ids, row, "new") for row in rows),
            create_schedule_change(b.ids, make_schedule(b.ids, name="new")),
        ]
        results = await asyncio.gather(*(b.apply(change) for change in changes))
        assert sorted(result.status for (result,) in results) == ["accepted", *["refused"] * 4]
        assert len(await b.store.find(Schedules(ns="default", name="new"))) == 1
        await self._names(b)

    @on_store
    async def test_names_pass_on_within_one_batch_in_its_order(self, b: StoreBench) -> None:
        first, second = await b.schedule(name="a"), await b.schedule(name="b")
        third = make_schedule(b.ids, name="b")
        results = await b.apply(
            create_schedule_change(b.ids, make_schedule(b.ids, name="a")),
            rename_change(b.ids, first, "c"),
            rename_change(b.ids, second, "a"),
            create_schedule_change(b.ids, third),
        )
        assert [result.status for result in results] == ["refused", "accepted", "accepted", "accepted"]
        assert await self._names(b) == {"c": first.id, "a": second.id, "b": third.id}

    @on_store
    async def test_names_pass_on_when_rows_are_restored(self, b: StoreBench) -> None:
        """The rows of a page have the names of now, and those of an earlier page may have had them before."""
        rows = [make_schedule(b.ids, name=name) for name in "abc"]
        events = tuple(
            ScheduleCreated(
                seq=seq, at=T0, n=1, schedule_id=row.id, name=row.name, spec=row.spec, anchor=T0, cursor=row.cursor
            )
            for seq, row in enumerate(rows, 1)
        )
        assert await b.store.restore(Page(after=0, events=events, schedules=tuple(rows)))
        first, second, third = (replace(row, name=name) for row, name in zip(rows, "bad", strict=True))
        new = make_schedule(b.ids, name="c")
        assert await b.store.restore(Page(after=3, schedules=(first, second)))
        assert await self._names(b) == {"b": first.id, "a": second.id, "c": third.id}
        assert await b.store.restore(Page(after=3, schedules=(new,)))
        assert await b.store.restore(Page(after=3, schedules=(third,)))
        assert await self._names(b) == {"b": first.id, "a": second.id, "d": third.id, "c": new.id}
