"""Notes: events about an instance, such as its start, which belong to no change of a run or a schedule."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mainspring.engine.commit.batcher import Batcher
from mainspring.model.change import Change
from mainspring.model.events import Event, SubscriberFailed

#: Characters stored of an error text in a note.
MAX_NOTE_ERROR_CHARS = 500


class LogNotes:
    """Appends notes of namespace `ns` to the event log. Thread: engine loop."""

    def __init__(self, ns: str, batcher: Batcher, change_id: Callable[[], str]) -> None:
        self._ns = ns
        self._batcher = batcher
        self._change_id = change_id

    async def append(self, event: Event) -> None:
        """Append a note and return when it is committed. Raises: StoreError."""
        await self._batcher.apply(self._change(event))

    def append_soon(self, event: Event) -> None:
        """Append a note with one of the next commits, without waiting for it. If the store fails, the note is lost."""
        future = self._batcher.submit(self._change(event))
        future.add_done_callback(lambda f: f.cancelled() or f.exception())

    def _change(self, event: Event) -> Change:
        return Change(id=self._change_id(), events=(replace(event, ns=self._ns),))

    def append_subscriber_failure(self, event: Event, error: str) -> None:
        """Append a `SubscriberFailed` with one of the next commits, because a subscriber raised an error on `event`.

        `error`: the text of the error, whose first `MAX_NOTE_ERROR_CHARS` characters are stored. If the store fails,
        the note is lost. If `event` is itself a `SubscriberFailed`, append nothing.
        """
        if isinstance(event, SubscriberFailed):
            return  # else a subscriber to failures that always fails would get a new event each time
        self.append_soon(
            SubscriberFailed(
                run_id=event.run_id,
                schedule_id=event.schedule_id,
                event=type(event).__name__,
                error=error[:MAX_NOTE_ERROR_CHARS],
            )
        )
