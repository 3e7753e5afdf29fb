"""What holds for every trigger: increasing fires, exact counts, value semantics, speed."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.model.trigger import AtSpec, CronSpec, EverySpec
from mainspring.rules.triggers import At, Cron, Every, Trigger, compile_trigger

DAY = 86_400_000
MINUTES = st.sampled_from(["*", "0", "*/5", "30", "15,45", "0-59/7", "5/20", "50-10"])
HOURS = st.sampled_from(["*", "0", "2", "1-3", "*/4", "9", "22-2", "0,12"])
DAYS = st.sampled_from(["*", "1", "15", "L", "LW", "15W", "29-31", "*/3", "L-2"])
MONTHS = st.sampled_from(["*", "3", "10-11", "NOV-FEB", "*/2"])
WEEKDAYS = st.sampled_from(["*", "1-5", "SUN", "0#2", "5L", "SAT-MON", "*/2"])
SECONDS = st.sampled_from(["", "", "0 ", "*/20 ", "59 "])
CRONS = st.builds(
    lambda s, m, h, d, mo, w, tz, gap, overlap: Cron(f"{s}{m} {h} {d} {mo} {w}", tz, gap, overlap),
    *(SECONDS, MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS),
    st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Santiago"]),
    st.sampled_from(["shift", "skip"]),
    st.sampled_from(["first", "last", "both"]),
)
TRIGGERS: st.SearchStrategy[Trigger] = st.one_of(
    CRONS,
    CRONS,
    st.builds(
        lambda interval, anchor: compile_trigger(EverySpec(interval * 1000, anchor)),
        st.integers(1, 10**6),
        st.integers(1_700_000_000_000, 1_800_000_000_000),
    ),
    st.lists(st.integers(1_700_000_000_000, 1_800_000_000_000), max_size=30).map(
        lambda times: compile_trigger(AtSpec(tuple(times)))
    ),
)


@settings(max_examples=120, deadline=None)
@given(
    trigger=TRIGGERS,
    after=st.integers(1_700_000_000_000, 1_800_000_000_000),
    length=st.integers(0, 6 * DAY),
    n=st.integers(0, 50),
)
def test_next_count_first_and_last_agree(trigger: Trigger, after: int, length: int, n: int) -> None:
    through, chain = after + length, []
    at = trigger.next_ms(after)
    while at is not None and at <= through and len(chain) < 1000:
        assert at > (chain[-1] if chain else after)
        chain.append(at)
        at = trigger.next_ms(at)
    listed = trigger.fires_ms(after, through, 10**6)
    assert listed[:1000] == chain
    assert all(earlier < later for earlier, later in pairwise(listed))
    assert trigger.count_ms(after, through) == len(listed)
    assert trigger.fires_ms(after, through, n) == listed[:n]
    assert trigger.last_ms(after, through, n) == listed[max(0, len(listed) - n) :]
    assert not set(trigger.dropped_ms(after, through)) & set(listed)
    assert trigger.count_ms(through, after) == (0 if length else trigger.count_ms(after, through))


@pytest.mark.parametrize(
    ("spec", "trigger"),
    [
        (CronSpec("0 9 * * *", "Europe/Berlin", "skip", "both"), Cron("0 9 * * *", "Europe/Berlin", "skip", "both")),
        (CronSpec("H 9 * * *", hash_id="a"), Cron("H 9 * * *", hash_id="a")),
        (EverySpec(60_000), Every("1m")),
        (EverySpec(60_000, 0, True), Every(60, datetime(1970, 1, 1, tzinfo=UTC), fixed_delay=True)),
        (AtSpec((0,)), At(datetime(1970, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_trigger_is_a_value(spec: CronSpec | EverySpec | AtSpec, trigger: Trigger) -> None:
    compiled = compile_trigger(spec)
    assert compiled == trigger
    assert hash(compiled) == hash(trigger)
    assert trigger.spec == spec
    assert compile_trigger(spec) is compiled
    assert trigger != "text"
    assert type(trigger).__name__ in repr(trigger)
    with pytest.raises(AttributeError):
        trigger.spec = spec  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del trigger.spec


def test_cron_takes_a_zone_object() -> None:
    assert Cron("0 9 * * *", ZoneInfo("Europe/Berlin")) == Cron("0 9 * * *", "Europe/Berlin")


def test_an_anchor_fills_in() -> None:
    assert compile_trigger(EverySpec(1000), 500).spec == EverySpec(1000, 500)
    assert compile_trigger(EverySpec(1000, 7), 500).spec == EverySpec(1000, 7)


def median_us(trigger: Trigger, starts: list[datetime]) -> float:
    """The best of several medians: what the code costs, not what the machine was doing."""
    medians = []
    for _ in range(5):
        taken = []
        for start in starts:
            before = time.perf_counter_ns()
            trigger.next_after(start)
            taken.append(time.perf_counter_ns() - before)
        medians.append(statistics.median(taken) / 1000)
    return min(medians)


STARTS = [datetime.fromtimestamp(1_767_225_600 + n * 98_765, UTC) for n in range(300)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("text", ["*/5 * * * *", "0 * * * *", "0 9 * * 1-5", "0 0 1 * *"])
def test_next_is_fast(text: str, zone: str) -> None:
    assert median_us(Cron(text, zone), STARTS) <= 40


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 29 2 1", "0 0 * 2 1#5", "0 0 30 2 *", "0 0 */30 4 1#2"])
def test_rare_is_fast(text: str, zone: str) -> None:
    assert median_us(Cron(text, zone), STARTS[:60]) < 1000


@pytest.mark.parametrize(
    ("text", "days", "limit", "fires"),
    [("* * * * *", 30, 0.005, 43_200), ("* * * * * *", 30, 0.005, 2_592_000), ("*/5 9-17 * * 1-5", 3653, 0.1, None)],
)
def test_counting_does_not_enumerate(text: str, days: int, limit: float, fires: int | None) -> None:
    cron, start, taken = Cron(text, "America/New_York"), 1_767_225_600_000, []
    for _ in range(5):
        before = time.perf_counter()
        found = cron.count_ms(start, start + days * DAY)
        last = cron.last_ms(start, start + days * DAY, 10)
        taken.append(time.perf_counter() - before)
    assert min(taken) < limit
    assert fires is None or found == fires
    assert len(last) == 10
