"""The size of a worker pool: inside its bounds, there soon when work waits, gone when idle, never to and fro."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.errors import InvalidInput
from mainspring.rules.autoscale import (
    MAX_POLLS_BEFORE_SHRINKING,
    MAX_RESTART_SECONDS,
    POLLS_BEFORE_GROWING,
    POLLS_BEFORE_SHRINKING,
    Bounds,
    Demand,
    PoolState,
    parse_bounds,
    resize,
    restart_delay,
)

IDLE = Demand(0, 0)
SLOTS = st.integers(1, 50)
DEMANDS = st.builds(Demand, st.integers(0, 2_000), st.integers(0, 2_000)) | st.builds(
    Demand, st.just(0), st.integers(0, 200)
)


@st.composite
def all_bounds(draw: st.DrawFn) -> Bounds:
    low = draw(st.integers(1, 40))
    high = draw(st.integers(low, 60))
    return Bounds(low, high, draw(st.integers(low, high)))


def sizes(bounds: Bounds, slots: int, demands: list[Demand], pool: PoolState | None = None) -> list[int]:
    pool = pool or PoolState(bounds.start)
    found = [pool.size]
    for demand in demands:
        pool = resize(pool, demand, slots, bounds)
        found.append(pool.size)
    return found


@given(all_bounds(), SLOTS, st.lists(DEMANDS, max_size=200))
def test_the_size_stays_inside_the_bounds_and_at_most_doubles(
    bounds: Bounds, slots: int, demands: list[Demand]
) -> None:
    found = sizes(bounds, slots, demands)
    assert all(bounds.low <= size <= bounds.high for size in found)
    assert all(later <= 2 * before for before, later in itertools.pairwise(found))


@given(all_bounds(), SLOTS)
def test_under_a_backlog_it_is_full_within_a_few_looks(bounds: Bounds, slots: int) -> None:
    looks = POLLS_BEFORE_GROWING + bounds.high.bit_length()
    assert sizes(bounds, slots, [Demand(bounds.high * slots, 0)] * looks)[-1] == bounds.high


@given(all_bounds(), SLOTS, st.lists(DEMANDS, max_size=100))
def test_a_pool_that_is_idle_long_enough_shrinks_to_its_lower_bound(
    bounds: Bounds, slots: int, before: list[Demand]
) -> None:
    found = sizes(bounds, slots, before + [IDLE] * (2 * MAX_POLLS_BEFORE_SHRINKING))
    assert found[-1] == bounds.low


@given(all_bounds(), SLOTS, st.lists(DEMANDS, max_size=300))
def test_it_shrinks_only_after_a_calm_as_long_as_its_patience(
    bounds: Bounds, slots: int, demands: list[Demand]
) -> None:
    found = sizes(bounds, slots, demands)
    for at, (before, later) in enumerate(itertools.pairwise(found)):
        if later < before:
            calm = demands[max(0, at + 1 - POLLS_BEFORE_SHRINKING) : at + 1]
            assert len(calm) == POLLS_BEFORE_SHRINKING
            assert all(demand.backlog == 0 for demand in calm)
            assert later * slots >= max(demand.running for demand in calm)


@given(all_bounds(), SLOTS, DEMANDS, st.lists(DEMANDS, max_size=50))
def test_a_constant_demand_moves_it_one_way_and_then_not_at_all(
    bounds: Bounds, slots: int, demand: Demand, before: list[Demand]
) -> None:
    pool = PoolState(bounds.start)
    for earlier in before:
        pool = resize(pool, earlier, slots, bounds)
    # The calm of before may still end in a first shrinking; from then on only the constant demand counts.
    found = sizes(bounds, slots, [demand] * (3 * MAX_POLLS_BEFORE_SHRINKING), pool)
    steps = [later - earlier for earlier, later in itertools.pairwise(found) if later != earlier]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert len(set(found[2 * MAX_POLLS_BEFORE_SHRINKING :])) == 1


@given(all_bounds(), SLOTS, st.integers(1, 3), st.integers(1, POLLS_BEFORE_SHRINKING - 1))
def test_bursts_that_come_again_and_again_do_not_make_it_flap(bounds: Bounds, slots: int, busy: int, calm: int) -> None:
    found = sizes(bounds, slots, ([Demand(slots, 0)] * busy + [IDLE] * calm) * 50)
    assert found == sorted(found)


def test_each_shrinking_that_came_too_early_doubles_the_patience() -> None:
    """Bursts a little further apart than its patience: the worst rhythm, once, and then it waits longer."""
    bounds = Bounds(1, 8, 1)
    rhythm = [Demand(80, 0)] * 6 + [IDLE] * (POLLS_BEFORE_SHRINKING + 2)
    found = sizes(bounds, 10, rhythm * 100)
    shrunk = [at for at, (before, later) in enumerate(itertools.pairwise(found)) if later < before]
    assert len(shrunk) <= 3
    assert found[-1] == 8


def test_a_backlog_that_is_gone_at_the_next_look_starts_no_process() -> None:
    assert set(sizes(Bounds(1, 8, 1), 10, [Demand(500, 0), IDLE] * 20)) == {1}


def test_busy_processes_are_not_stopped() -> None:
    found = sizes(Bounds(1, 8, 6), 10, [Demand(0, 41)] * 30)
    assert (found[POLLS_BEFORE_SHRINKING - 1], found[POLLS_BEFORE_SHRINKING], found[-1]) == (6, 5, 5)


def test_the_busiest_look_of_the_calm_decides_how_many_stay() -> None:
    found = sizes(Bounds(1, 8, 6), 10, [Demand(0, 1), Demand(0, 35), *[IDLE] * POLLS_BEFORE_SHRINKING])
    assert found[POLLS_BEFORE_SHRINKING] == found[-1] == 4


@given(st.integers(1, 100_000))
def test_a_restart_waits_longer_each_time_and_never_too_long(deaths: int) -> None:
    assert 0.5 <= restart_delay(deaths) <= restart_delay(deaths + 1) <= MAX_RESTART_SECONDS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None), Bounds(1, 1, 1)),
        ((4, None, None), Bounds(4, 4, 4)),
        ((None, None, 8), Bounds(1, 8, 1)),
        ((3, None, 8), Bounds(1, 8, 3)),
        ((None, 2, 8), Bounds(2, 8, 2)),
        ((4, 2, 8), Bounds(2, 8, 4)),
        ((4, 2, None), Bounds(2, 4, 4)),
        ((None, 2, None), Bounds(2, 2, 2)),
    ],
)
def test_the_options_combine_to_bounds(given: tuple[int | None, int | None, int | None], expected: Bounds) -> None:
    assert parse_bounds(*given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0, None, None), "--processes: 0 is out of range"),
        ((-1, None, None), "--processes: -1 is out of range"),
        ((257, None, None), "Use 1 to 256"),
        ((None, 0, 2), "--min-processes: 0 is out of range"),
        ((None, None, 0), "--max-processes: 0 is out of range"),
        ((None, 4, 2), "--min-processes: 4 is more than"),
        ((9, 2, 4), "--processes: 9 is not between 2 and 4"),
        ((1, 2, 4), "--processes: 1 is not between 2 and 4"),
    ],
)
def test_contradicting_options_are_refused(given: tuple[int | None, int | None, int | None], said: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        parse_bounds(*given)
    assert said in str(wrong.value)
