"""The wire of a simulated world to a real PostgreSQL server finishes every call that it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mainspring.backends.postgres.settings import read_url
from proof.simulated_wire import Wire
from servers.for_tests import fresh_url


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire(read_url(fresh_url()))
    yield wire
    wire.close()


def test_an_answer_in_the_moment_of_its_time_out_does_not_interrupt_the_next_call(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call opens a connection; interrupted, it left one that no object closed (a `ResourceWarning` later)."""
    line = wire.line()
    monkeypatch.setattr(line.connection, "fetchval", stop_and_answer)
    wire.ask(line, "fetchval", "SELECT 1", ())
    assert line.answer is not None
    assert line.answer.result() == 1
    other = wire.line()
    wire.ask(other, "fetchval", "SELECT 2", ())
    assert other.answer is not None
    assert other.answer.result() == 2


async def stop_and_answer(sql: str) -> int:
    """Answer in the turn of the loop in which the time-out stops it."""
    asyncio.get_running_loop().stop()
    return 1
