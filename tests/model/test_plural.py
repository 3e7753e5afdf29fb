"""Counts with their nouns."""

from __future__ import annotations

import pytest

from mainspring.model.plural import plural


@pytest.mark.parametrize(("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (-1, "-1 runs")])
def test_one_is_singular_and_every_other_count_is_plural(count: int, text: str) -> None:
    assert plural(count, "run") == text
