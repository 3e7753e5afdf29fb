"""What the error says if a run's state does not allow a change."""

from __future__ import annotations

from collections.abc import Sequence

#: Class name of an event → what a caller asked for, in words. Other events come from the engine alone.
_REQUESTS = {
    "RunReopened": "retried",
    "RunDiscarded": "discarded",
    "CancelRequested": "cancelled",
    "RunCancelled": "cancelled",
}


def describe_refusal(run_id: str, state: str | None, event: str, legal: Sequence[str]) -> str:
    """Return the error text: a run in `state` (None: it does not exist yet) cannot have an event of the class `event`.

    `legal`: names of the events that it can have. They are named only if `event` is not what a user asks for.
    """
    known = f"run {run_id} {f'is {state}' if state else 'does not exist yet'}"
    if event in _REQUESTS:
        return f"{known} and cannot be {_REQUESTS[event]}"
    possible = f"possible: {', '.join(legal)}" if legal else "no event can"
    return f"{known}: event {event} cannot follow ({possible})"
