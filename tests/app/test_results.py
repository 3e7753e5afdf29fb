"""What is kept of a function's return value, also of one that JSON cannot hold."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from mainspring import Mainspring, State
from mainspring.app.result import MAX_REPR_CHARS, ResultEncoder
from mainspring.testing import travel


class Row:
    """An object of the user, as from an object-relational mapper."""

    def __init__(self, text: str = "<row 7>") -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@dataclass
class Defaults:
    """A type that msgspec would make of any object."""

    n: int = 0


def rows() -> Iterator[int]:
    yield 1


KEPT: list[tuple[str, Any, str, str]] = [
    ("object", Row(), "<row 7>", "test_results.Row"),
    ("object in a list", [1, Row()], "[1, <row 7>]", "builtins.list"),
    ("not a number", {"x": math.nan}, "{'x': nan}", "builtins.dict"),
    ("type", decimal.Context, "<class 'decimal.Context'>", "builtins.type"),
    ("too large", "x" * 1_100_000, "'xxx", "builtins.str"),
    ("long repr", Row("y" * 5_000), "yyy", "test_results.Row"),
    ("surrogate", Row("\ud800"), "", "test_results.Row"),
    ("repr that fails", Unreadable(), "<Unreadable instance at", "test_results.Unreadable"),
]


@pytest.mark.parametrize(("value", "words", "kind"), [row[1:] for row in KEPT], ids=[row[0] for row in KEPT])
@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_a_result_that_json_cannot_hold_is_kept_as_its_repr(
    executor: Any, value: Any, words: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ms = Mainspring("memory://")

    @ms.task(executor=executor)
    def export() -> Defaults:
        return value  # type: ignore[no-any-return]  # a wrong annotation must not hide that it is a repr

    async with travel(ms, "2026-01-05T08:00Z") as t:
        handle = await export.enqueue()
        await t.settle()
        assert await handle.state() is State.SUCCEEDED
        kept: Any = await handle.result()
    assert kept["$repr"].startswith(words)
    assert len(kept["$repr"]) <= MAX_REPR_CHARS
    assert kept["$type"] == kind
    (line,) = [record for record in caplog.records if record.name == "mainspring.run"]
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith("task export: only the repr is kept of its result")


def test_the_warning_names_the_part_and_the_fix_once_for_each_type(caplog: pytest.LogCaptureFixture) -> None:
    encode = ResultEncoder("export")
    for value in ({"rows": [1, Row()]}, {"rows": Row()}, rows(), 5, None):
        encode(value)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "task export: only the repr is kept of its result.rows[1]: cannot be stored as JSON: <row 7> is of "
            "type Row. Return numbers, text, lists, dictionaries, dates, paths, dataclasses, attrs classes "
            "or pydantic models"
        ),
        (
            "task export: only the repr is kept of its result: cannot be stored as JSON: "
            f"{caplog.records[1].getMessage().split('JSON: ')[1].split(' is of')[0]} is of type generator. "
            "Iterate it in the function"
        ),
    ]


async def test_a_coroutine_that_a_plain_function_returns_is_awaited() -> None:
    ms = Mainspring("memory://")

    async def send(customer: str) -> str:
        return f"to {customer}"

    @ms.task
    def in_thread(customer: str) -> Any:
        return send(customer)

    @ms.task(executor="loop")
    def on_loop(customer: str) -> Any:
        return send(customer)

    async with ms.running():
        for task in (in_thread, on_loop, ms.task(name="partial")(partial(send, "acme"))):
            handle = await (task.enqueue("acme") if task.name != "partial" else task.enqueue())
            assert await handle.result(timeout="10s") == "to acme"


async def test_a_coroutine_that_nothing_awaited_fails_the_run() -> None:
    ms = Mainspring("memory://")

    async def send() -> None: ...

    @ms.task
    async def wrong() -> Any:
        return send()

    async with travel(ms, "2026-01-05T08:00Z") as t:
        handle = await wrong.enqueue()
        await t.settle()
        run = await handle.run()
    assert (run.state, run.attempt, run.reason) == (State.FAILED, 1, "result")
    assert "result: is the coroutine" in (run.error or "")
    assert "which was never awaited. Write an async def and await it there" in (run.error or "")
