"""Which functions can be tasks: refuse one whose body would not run as a task, when it is decorated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mainspring.model.errors import InvalidInput


def check_function(function: Callable[..., Any], *, has_name: bool, in_process: bool) -> None:
    """Raise InvalidInput for a callable that cannot be a task, with what to write instead.

    `has_name`: the options name the task, so the callable needs no name of its own. `in_process`: the task runs in a
    child process, which finds the function by module and name.
    """
    if not callable(function):
        raise InvalidInput("task", f"{function!r} is not a function", "Decorate a def or an async def")
    if inspect.isclass(function):
        raise InvalidInput(
            "task", f"{function.__name__} is a class", "Decorate a def that makes the object and calls it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            "task",
            f"{function.__name__} is a generator, whose body would never run",
            "Collect the values in a list and return it",
        )
    own_name = getattr(function, "__name__", "")
    if not has_name and own_name in ("", "<lambda>"):
        what = "a lambda" if own_name else f"an object of {type(function).__name__}"
        raise InvalidInput("task name", f"{what} has no name", 'Give it one: ms.task(name="…")(function)')
    qualname = getattr(function, "__qualname__", "")
    if _is_unbound_method(function, qualname):
        raise InvalidInput(
            "task",
            f"{qualname} is a method without its object",
            "Register a function, or the bound method of an object",
        )
    if in_process and (not qualname or "<" in qualname or inspect.ismethod(function)):
        what = qualname or f"an object of {type(function).__name__}"
        raise InvalidInput(
            "executor", f"a child process cannot import {what}", "Define the function at the top level of a module"
        )


def _is_unbound_method(function: Callable[..., Any], qualname: str) -> bool:
    """Return True for a function that was defined in a class and whose first parameter is the object or class."""
    if not inspect.isfunction(function) or "." not in qualname.rpartition("<locals>.")[2]:
        return False
    return next(iter(inspect.signature(function).parameters), "") in ("self", "cls")
