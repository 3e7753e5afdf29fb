"""Event handlers of the compatibility layers: an object with a method `handle`, or a function of one event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from mainspring import InvalidInput

E_contra = TypeVar("E_contra", contravariant=True)
E = TypeVar("E")


class EventHandler(Protocol[E_contra]):
    """An object whose method `handle` is called with each event. `handle` may be an `async def`."""

    def handle(self, event: E_contra, /) -> Awaitable[None] | None: ...


#: An `EventHandler`, or a function of one event.
Listener = EventHandler[E] | Callable[[E], Any]


def as_function(listener: Listener[E]) -> Callable[[E], Any]:
    """Return the function to call with events: the listener's method `handle`, else the listener itself.

    Raises: InvalidInput if the listener has no `handle` and cannot be called.
    """
    handle: Callable[[E], Any] | None = getattr(listener, "handle", None)
    if handle is not None:
        return handle
    if not callable(listener):
        raise InvalidInput("handler", f"{listener!r} handles no events", "Give a function, or an object with handle()")
    return listener
