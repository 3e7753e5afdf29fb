"""Pytest plugin: the fixture `mainspring`, a test kit. The kit is imported only when a test requests the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mainspring.testing import Kit


@pytest.fixture
def mainspring() -> Iterator[Kit]:
    """Yield a test kit: a virtual clock, a store in memory, and a worker that runs due work when the test calls it.

    Its methods are those of `mainspring.testing.Kit`.
    """
    from mainspring.testing import Kit

    with Kit() as kit:
        yield kit
