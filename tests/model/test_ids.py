"""Ids: many at once are those that one by one would be."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from mainspring.model.ids import IdFactory


@pytest.mark.parametrize("counts", [(0, 1, 0), (1, 1, 1), (500, 2, 300)])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_a_bulk_of_ids_equals_the_ids_made_one_by_one(counts: tuple[int, ...], step: int) -> None:
    many, single = IdFactory(random.Random(5)), IdFactory(random.Random(5))
    now, made = 1_700_000_000_000, []
    for count in counts:
        ids = many.uuid7s(now, count)
        assert ids == [single.uuid7(now) for _ in range(count)]
        made += ids
        now += step
    assert many.uuid7(now) == single.uuid7(now)
    assert made == sorted(set(made))
    assert all(UUID(one).version == 7 for one in made)


def test_a_bulk_of_ids_carries_into_the_front_of_an_id() -> None:
    many, single = IdFactory(random.Random(5)), IdFactory(random.Random(5))
    many._last = single._last = (7, (1 << 62) - (1 << 27))
    ids = many.uuid7s(7, 100)
    assert ids == [single.uuid7(7) for _ in range(100)]
    assert len({one[:19] for one in ids}) == 2
