"""Two stores' rows and logs in forms that can be compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from msgspec.structs import replace

from mainspring.model.events import Event, LogCompacted


def counted(rows: Iterable[Hashable]) -> Counter[Hashable]:
    return Counter(rows)


def streams(log: list[Event]) -> dict[tuple[str | None, str | None], list[Event]]:
    """Each stream in its own order; how streams interleave inside one batch is a store's own matter."""
    streams: dict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
    for event in log:
        if isinstance(event, LogCompacted):
            event = replace(event, through=0, digest="")
        streams[event.run_id, None if event.run_id else event.schedule_id].append(replace(event, seq=0))
    return dict(streams)
