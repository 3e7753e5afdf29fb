"""Callables that cannot be tasks are refused when they are decorated, with what to write instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from mainspring import InvalidInput, Mainspring


class Mailer:
    """A class with a method, an object with `__call__`."""

    def send(self, customer: str) -> str:
        return f"to {customer}"

    @classmethod
    def make(cls) -> Mailer:
        return cls()

    def __call__(self, customer: str) -> str:
        return f"called for {customer}"


def numbers() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


def greet(customer: str, greeting: str = "hello") -> str:
    return f"{greeting} {customer}"


REFUSED: list[tuple[str, Callable[[Mainspring], object], str]] = [
    ("no function", lambda ms: ms.task(7), "task: 7 is not a function. Decorate a def or an async def"),
    ("class", lambda ms: ms.task(Mailer), "task: Mailer is a class. Decorate a def that makes"),
    ("generator", lambda ms: ms.task(numbers), "task: numbers is a generator, whose body would never run. Collect"),
    ("async generator", lambda ms: ms.every("1s")(later), "task: later is a generator"),
    ("lambda", lambda ms: ms.task(lambda: 1), r'task name: a lambda has no name. Give it one: ms.task\(name="…"\)'),
    ("partial", lambda ms: ms.task(partial(greet, greeting="hi")), "task name: an object of partial has no name"),
    ("object", lambda ms: ms.task(Mailer()), "task name: an object of Mailer has no name"),
    (
        "method",
        lambda ms: ms.task(Mailer.send),
        "task: Mailer.send is a method without its object. Register a function",
    ),
    ("closure", lambda ms: ms.task(executor="process")(lambda: 1), "task name: a lambda has no name"),
    (
        "partial in a process",
        lambda ms: ms.task(name="x", executor="process")(partial(greet, greeting="hi")),
        "executor: a child process cannot import an object of partial",
    ),
    (
        "method in a process",
        lambda ms: ms.task(executor="process")(Mailer().send),
        "executor: a child process cannot import Mailer.send",
    ),
    (
        "named lambda in a process",
        lambda ms: ms.task(name="x", executor="process")(lambda: 1),
        "executor: a child process cannot import .*<lambda>. Define the function at the top level",
    ),
    (
        "every without an interval",
        lambda ms: ms.every(greet),
        r'every: is used without a value. Write @ms.every\("10m"\)',
    ),
    (
        "cron without a text",
        lambda ms: ms.cron(greet),
        r'cron: is used without a value. Write @ms.cron\("0 9 \* \* \*"\)',
    ),
    ("at without a time", lambda ms: ms.at(greet), r"at: is used without a value. Write @ms.at\(datetime\(2030"),
]


@pytest.mark.parametrize(("wrong", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_callable_that_cannot_be_a_task_is_refused_when_decorated(
    wrong: Callable[[Mainspring], object], message: str
) -> None:
    ms = Mainspring("memory://")
    with pytest.raises(InvalidInput, match=f"^{message}"):
        wrong(ms)
    assert (ms.tasks, ms.declared) == ({}, ())


async def test_callables_with_a_name_are_tasks() -> None:
    ms = Mainspring("memory://")
    mailer = Mailer()
    tasks: list[Any] = [
        ms.task(name="partial")(partial(greet, greeting="hi")),
        ms.task(name="object")(mailer),
        ms.task(name="lambda")(lambda customer: f"lambda {customer}"),
        ms.task(mailer.send),
    ]
    async with ms.running():
        results = [await (await task.enqueue("acme")).result(timeout="10s") for task in tasks]
    assert results == ["hi acme", "called for acme", "lambda acme", "to acme"]
