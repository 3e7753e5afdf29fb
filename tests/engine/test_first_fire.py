"""`first="now"`: an interval that fires when its schedule is created, once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Every, InvalidInput, Mainspring
from mainspring.ledger.account import ledger
from mainspring.model.instant import instant_ms
from mainspring.model.schedule import ScheduleSpec
from mainspring.rules.definition import SpecTarget, build_spec
from mainspring.rules.planning import next_fire
from mainspring.rules.schedule_commands import OpenRuns, create, update
from mainspring.testing import travel

START = "2026-01-05T08:00:00Z"
T0 = instant_ms(START)
MINUTE = 60_000


def program(url: str, interval: str = "1h", **options: Any) -> tuple[Mainspring, list[str]]:
    ms, fired = Mainspring(url), []

    @ms.every(interval, first="now", **options)
    async def tick() -> None:
        fired.append(f"{ms.clock.now() - T0:_} ms")

    return ms, fired


@pytest.mark.parametrize("options", [{}, {"overlap": "allow_parallel"}], ids=["forbid", "parallel"])
async def test_the_first_fire_is_at_creation_and_not_again_at_a_restart(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    ms, fired = program(url, **options)
    async with travel(ms, START) as t:
        await t.settle()
        assert fired == ["0 ms"]
        await t.advance("59m")
        assert len(fired) == 1
        await t.advance("90m")
        assert fired == ["0 ms", "3_600_000 ms", "7_200_000 ms"]
        now = t.now
    again, fired_again = program(url, **options)
    async with travel(again, now) as t:
        await t.settle()
        assert fired_again == []
        await t.advance("31m")
        assert fired_again == ["10_800_000 ms"]
        (line,) = (await ledger(t.runtime.store, now=t.clock.now())).schedules
        assert line.unexplained == 0


async def test_a_schedule_made_by_a_call_and_one_with_a_fixed_delay_fire_at_once() -> None:
    ms, fired = Mainspring("memory://"), []

    @ms.task
    async def tick(what: str) -> None:
        fired.append(what)

    async with travel(ms, START) as t:
        await ms.schedule("plain", tick, every="1h", first="now", args=("plain",))
        await ms.schedule("object", tick, every=Every("1h", first="now"), args=("object",))
        await ms.schedule("delay", tick, every=Every("1h", fixed_delay=True), first="now", args=("delay",))
        await ms.schedule(
            "later", tick, every="1h", first="now", args=("later",), start=datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
        )
        await ms.schedule_many(tick, [{"name": "bulk", "every": "1h", "first": "now", "args": ("bulk",)}])
        assert "first at once" in Every("1h", first="now").describe()
        await t.settle()
        assert sorted(fired) == ["bulk", "delay", "object", "plain"]
        await t.advance("61m")
        assert sorted(fired) == sorted(["bulk", "delay", "object", "plain"] * 2)
        await t.advance("30m")
        assert fired[-1] == "later"


async def test_an_edit_fires_at_once_only_if_it_changes_the_interval() -> None:
    ms, fired = program("memory://")
    async with travel(ms, START) as t:
        await t.advance("10m")
        await ms.update("tick", jitter="1ms")
        await t.advance("10m")
        assert fired == ["0 ms"]
        await ms.update("tick", every="2h", first="now")
        await t.advance("1m")
        assert fired == ["0 ms", "1_200_000 ms"]
        await ms.update("tick", every="3h")
        await t.advance("1m")
        assert len(fired) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "0 9 * * *", "first": "now"}, "first: belongs to an interval. Give it with every="),
        ({"delay": "5m", "first": "now"}, "first: belongs to an interval"),
        ({"every": "1h", "first": "soon"}, "first: 'soon' is not one of now"),
        (
            {"every": Every("1h", anchor=datetime(2026, 1, 1, tzinfo=UTC)), "first": "now"},
            "first: the anchor already says",
        ),
    ],
)
def test_what_cannot_fire_first_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{words}"):
        spec_of(**options)


async def test_an_edit_with_first_alone_is_refused() -> None:
    ms, _ = program("memory://")
    async with travel(ms, START):
        with pytest.raises(InvalidInput, match=r"^first: belongs to an interval"):
            await ms.update("tick", first="now")


def spec_of(**options: Any) -> ScheduleSpec:
    return build_spec(SpecTarget("tick"), options, name="default/tick", now=T0)


@given(
    interval=st.integers(1, 10_000_000),
    edited=st.integers(1, 10_000_000),
    after=st.integers(0, 20_000_000),
    fixed=st.booleans(),
)
def test_no_fire_time_comes_twice_whatever_is_edited(interval: int, edited: int, after: int, fixed: bool) -> None:
    first = spec_of(every=Every(interval / 1000, fixed_delay=fixed), first="now")
    made = create("s", "default", "tick", first, T0).schedule
    assert made.next_at == T0
    draft = update(made, OpenRuns(), spec_of(every=edited / 1000, first="now"), T0 + after)
    row = draft.schedule
    fires = [event.fire_time for event in draft.events if hasattr(event, "fire_time")]
    coming = next_fire(row.spec, row.anchor, row.cursor)
    assert coming is not None
    assert coming >= T0 + after or interval == edited
    assert coming not in fires
