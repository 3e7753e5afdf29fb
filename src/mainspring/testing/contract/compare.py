"""Functions that bring answers, rows and logs of two stores into a form in which equal stores give equal values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from msgspec.structs import replace

from mainspring.model.events import Event, LogCompacted
from mainspring.ports.store import Applied


def comparable_answer(applied: Applied) -> Applied:
    """Return the answer with `parked` set to True, because a store may return True although no run is parked."""
    return replace(applied, parked=True)


def count_rows(rows: Iterable[Hashable]) -> Counter[Hashable]:
    """Return how often each row occurs, to compare the rows of two stores without regard to their order."""
    return Counter(rows)


def group_by_stream(log: list[Event]) -> dict[tuple[str | None, str | None], list[Event]]:
    """Return the events of each run and each schedule, in their order and with `seq` set to 0.

    Why: stores may order the events of different runs and schedules in one batch differently. The keys are
    (run id, None), (None, schedule id), and (None, None) for events about neither. The fields of `LogCompacted` that
    depend on the order of the log are cleared.
    """
    group_by_stream: dict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
    for event in log:
        if isinstance(event, LogCompacted):
            event = replace(event, through=0, digest="")
        group_by_stream[event.run_id, None if event.run_id else event.schedule_id].append(replace(event, seq=0))
    return dict(group_by_stream)
