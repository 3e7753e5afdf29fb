"""Creating schedules by the thousand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import Cron, Every, InvalidInput, Mainspring
from mainspring.model.errors import ScheduleConflict
from mainspring.testing import travel
from tests.engine.support import START
from tests.stored_rows import stored


def app() -> tuple[Mainspring, Any]:
    ms = Mainspring("memory://")

    @ms.task
    async def ping(number: int = 0) -> None: ...

    return ms, ping


async def test_many_schedules_are_created_a_thousand_in_a_commit_and_fire() -> None:
    ms, ping = app()
    items = [{"name": f"s{i}", "every": "1h", "args": (i,)} for i in range(2_500)]
    async with travel(ms, START) as t:
        batches: list[int] = []
        apply = t.runtime.store.apply

        async def counted(changes: Any, **kwargs: Any) -> Any:
            batches.append(sum(change.schedule is not None for change in changes))
            return await apply(changes, **kwargs)

        t.runtime.store.apply = counted  # type: ignore[method-assign]
        assert await ms.schedule_many(ping, items) == 2_500
        assert [size for size in batches if size] == [1_000, 1_000, 500]
        assert (await stored(ms, ms.get("s2499"))).spec.task == "ping"
        await t.advance("1h")
        assert len(await stored(ms, ms.runs(limit=5_000))) == 2_500


async def test_the_same_call_again_changes_nothing() -> None:
    ms, ping = app()
    items = [{"name": f"s{i}", "cron": "0 3 * * *"} for i in range(5)]
    async with travel(ms, START):
        assert await ms.schedule_many(ping, items) == 5
        before = [(await stored(ms, ms.get(f"s{i}"))).n for i in range(5)]
        assert await ms.schedule_many(ping, [*items, {"name": "new", "every": "5m"}]) == 1
        assert [(await stored(ms, ms.get(f"s{i}"))).n for i in range(5)] == before


async def test_another_definition_under_a_name_is_a_conflict_or_replaces_it() -> None:
    ms, ping = app()
    async with travel(ms, START):
        await ms.schedule_many(ping, [{"name": "a", "every": "5m"}])
        with pytest.raises(ScheduleConflict, match="a schedule called 'a' exists"):
            await ms.schedule_many(ping, [{"name": "a", "every": "6m"}])
        assert (await ms.get("a")).revision == 1
        await ms.schedule_many(ping, [{"name": "a", "every": "6m"}], on_conflict="replace")
        assert (await ms.get("a")).revision == 2


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"name": "x", "cron": "61 * * * *"}, r"items\[2\]\.minute: 61 is out of range"),
        ({"name": "x", "every": "5m", "tz": "Europe/Pariss"}, r"items\[2\]\.tz.*Europe/Paris"),
        ({"name": "x"}, r"items\[2\]\."),
        ({"name": "", "every": "5m"}, r"items\[2\]\.name"),
        ({"every": "5m"}, r"items\[2\]: .*has no name"),
        ({"name": "x", "every": "5m", "overlaps": "skip"}, r"items\[2\]\.overlaps.*overlap"),
        ("every 5m", r"items\[2\]: .*has no name"),
    ],
)
async def test_a_wrong_item_is_refused_with_its_number_and_nothing_of_its_thousand_is_stored(
    item: Any, said: str
) -> None:
    ms, ping = app()
    async with travel(ms, START):
        with pytest.raises(InvalidInput, match=said):
            await ms.schedule_many(ping, [{"name": "a", "every": "5m"}, {"name": "b", "trigger": Every("1h")}, item])
        assert await ms.schedules() == []


async def test_items_are_read_as_they_are_stored() -> None:
    ms, ping = app()
    read = 0

    def items() -> Iterator[dict[str, Any]]:
        nonlocal read
        for read in range(2_500):
            yield {"name": f"s{read}", "every": "1h"}

    async with travel(ms, START) as t:
        apply = t.runtime.store.apply
        seen: list[int] = []

        async def noting(changes: Any, **kwargs: Any) -> Any:
            seen.append(read)
            return await apply(changes, **kwargs)

        t.runtime.store.apply = noting  # type: ignore[method-assign]
        await ms.schedule_many(ping, items())
        assert seen[0] < 2_000, "one thousand is stored while the next is read"


async def test_what_came_before_the_thousand_of_a_wrong_item_is_stored_when_the_error_is_seen() -> None:
    ms, ping = app()
    async with travel(ms, START):
        good = [{"name": f"s{i}", "every": "1h"} for i in range(1_500)]
        with pytest.raises(InvalidInput, match=r"items\[1500\]"):
            await ms.schedule_many(ping, [*good, {"name": "x", "every": "no"}])
        assert len(await ms.schedules(limit=5_000)) == 1_000


_AT_NOON = {"anchor": datetime(2026, 1, 1, 12, tzinfo=UTC)}


@pytest.mark.parametrize(
    "items",
    [
        [{"trigger": Every("1h")}, {"trigger": Every("2h", **_AT_NOON)}, {"trigger": Every("1h", fixed_delay=True)}],
        [{"every": "1h"}, {"every": "1h"}, {"every": "2h"}, {"every": 3_600}, {"every": "1h", "tz": "Europe/Berlin"}],
        [{"cron": "H 3 * * *"}, {"cron": "H 3 * * *"}, {"trigger": Cron("5 4 * * *")}, {"trigger": Every("4h")}],
        [{"every": "1h", "args": (1,)}, {"every": "1h", "args": (2,)}, {"every": "1h", "kwargs": {"number": 3}}],
        [{"every": "1h", "priority": 1}, {"every": "1h", "priority": "high"}, {"every": "1h", "max_runs": 3}],
    ],
)
async def test_an_item_is_what_it_would_be_alone_whatever_came_before_it(items: list[dict[str, Any]]) -> None:
    """Items alike are made from one another."""
    ms, ping = app()
    async with travel(ms, START):
        for round_ in (items, items[::-1], [*items, *items]):
            named = [{"name": f"s{i}", **item} for i, item in enumerate(round_)]
            await ms.schedule_many(ping, named)
            for item in named:
                many = await stored(ms, ms.get(item["name"]))
                await ms.delete(many.name)
                alone = await stored(ms, ms.schedule(task=ping, **item))
                assert (alone.spec, alone.digest, alone.next_at) == (many.spec, many.digest, many.next_at)
                await ms.delete(alone.name)


async def test_one_dict_may_be_filled_again_for_each_item() -> None:
    ms, ping = app()

    def items() -> Iterator[dict[str, Any]]:
        item: dict[str, Any] = {}
        for hours in range(1, 4):
            item.update(name=f"s{hours}", every=f"{hours}h")
            yield item

    async with travel(ms, START):
        assert await ms.schedule_many(ping, items()) == 3
        assert [(await stored(ms, ms.get(f"s{hours}"))).spec.trigger for hours in (1, 2, 3)] == [
            Every(f"{hours}h").spec for hours in (1, 2, 3)
        ]
