"""Dependencies of handlers: `db: Pool = Depends(get_pool)` receives a value made for the attempt, then closed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar, overload

from mainspring.model.errors import InvalidInput

T = TypeVar("T")


class Dependency:
    """Default value of a parameter, which marks that the function `make` returns or yields the parameter's argument."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        if not callable(make):
            raise InvalidInput("Depends", f"{make!r} cannot be called", "Give a function, coroutine or generator")
        self.make = make


@overload
def Depends(make: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Iterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Awaitable[T]]) -> T: ...
@overload
def Depends(make: Callable[..., T]) -> T: ...
def Depends(make: Callable[..., Any]) -> Any:  # noqa: N802 - it stands where a value stands
    """Declare that a parameter receives what `make` returns or yields: `async def task(db: Pool = Depends(get_pool))`.

    `make` is called for each attempt. If it is a generator, its code after the `yield` runs when the attempt has ended.
    It may have dependencies of its own. Raises: InvalidInput if `make` cannot be called.
    """
    return Dependency(make)


def dependencies_of(function: Callable[..., Any]) -> dict[str, Dependency]:
    """Return the dependencies of a function, by parameter name."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, Dependency)}


async def resolve(needs: dict[str, Dependency], stack: contextlib.AsyncExitStack) -> dict[str, Any]:
    """Return a value for each parameter in `needs`, by its name, made on the running event loop.

    A dependency that is needed twice is made once. Generators are closed when the caller closes `stack`.
    """
    return await _resolve(needs, stack, {})


async def _resolve(
    needs: dict[str, Dependency], stack: contextlib.AsyncExitStack, made: dict[Callable[..., Any], Any]
) -> dict[str, Any]:
    """Return a value for each parameter in `needs`, by its name. Generators are closed when `stack` is closed.

    `made`: function → the value that it made. New values are added to it, so that each function is called once.
    """
    values: dict[str, Any] = {}
    for name, dependency in needs.items():
        make = dependency.make
        if make not in made:
            inner = await _resolve(dependencies_of(make), stack, made)
            if inspect.isasyncgenfunction(make):
                made[make] = await stack.enter_async_context(contextlib.asynccontextmanager(make)(**inner))
            elif inspect.isgeneratorfunction(make):
                made[make] = stack.enter_context(contextlib.contextmanager(make)(**inner))
            else:
                value = make(**inner)
                made[make] = await value if inspect.isawaitable(value) else value
        values[name] = made[make]
    return values


def resolve_blocking(
    needs: dict[str, Dependency],
    stack: contextlib.ExitStack,
    hop: Callable[[Coroutine[Any, Any, Any]], Any] | None,
) -> dict[str, Any]:
    """Return a value for each parameter in `needs`, by its name. Called on a thread without an event loop.

    `hop` runs a coroutine on the handlers' loop and waits for its value. If any dependency is asynchronous, all
    dependencies are made on that loop. In a process handler `hop` is None, and an asynchronous dependency raises
    InvalidInput. Generators are closed when the caller closes `stack`.
    """
    if hop is not None and any(_needs_loop(dependency.make) for dependency in needs.values()):
        outer = contextlib.AsyncExitStack()
        values: dict[str, Any] = hop(_resolve(needs, outer, {}))
        stack.push(lambda *raised: hop(outer.__aexit__(*raised)))
        return values
    made: dict[Callable[..., Any], Any] = {}
    return _resolve_blocking(needs, stack, made)


def _resolve_blocking(
    needs: dict[str, Dependency], stack: contextlib.ExitStack, made: dict[Callable[..., Any], Any]
) -> dict[str, Any]:
    """Return a value for each parameter in `needs`, by its name, made on this thread.

    `made`: function → the value that it made. New values are added to it, so that each function is called once.
    Generators are closed when `stack` is closed. Raises: InvalidInput if a dependency is asynchronous.
    """
    values: dict[str, Any] = {}
    for name, dependency in needs.items():
        make = dependency.make
        if make not in made:
            if _needs_loop(make):
                raise InvalidInput(
                    name, "an async dependency cannot be used in a process handler", "Make it a plain function"
                )
            inner = _resolve_blocking(dependencies_of(make), stack, made)
            if inspect.isgeneratorfunction(make):
                made[make] = stack.enter_context(contextlib.contextmanager(make)(**inner))
            else:
                made[make] = make(**inner)
        values[name] = made[make]
    return values


def _needs_loop(make: Callable[..., Any]) -> bool:
    """Return True if `make`, or a dependency of it, is a coroutine function or an asynchronous generator."""
    if inspect.iscoroutinefunction(make) or inspect.isasyncgenfunction(make):
        return True
    return any(_needs_loop(inner.make) for inner in dependencies_of(make).values())
