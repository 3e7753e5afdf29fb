"""The pytest plugin: one fixture. Nothing of Mainspring is loaded before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mainspring.testing import Kit


@pytest.fixture
def mainspring() -> Iterator[Kit]:
    """A virtual clock, a memory store and a worker that runs what is due when the test says so."""
    from mainspring.testing import Kit

    with Kit() as kit:
        yield kit
