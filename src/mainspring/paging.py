"""Reading all rows of a query, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from msgspec.structs import replace

from mainspring.model.instant import Ms
from mainspring.model.schedule import Span
from mainspring.ports.store import Query, Spans, Store

T = TypeVar("T")


async def all_rows(store: Store, query: Query[T], key: Callable[[T], str]) -> AsyncIterator[T]:
    """Every row of a query; `key` is what the next page goes on after."""
    while True:
        page = await store.find(query)
        for row in page:
            yield row
        if len(page) < query.limit:
            return
        query = replace(query, after=key(page[-1]))


async def all_spans(store: Store, schedule_id: str | None = None, since: Ms | None = None) -> AsyncIterator[Span]:
    """Every span by (schedule, through); they have no id, so a page goes on after a count."""
    query = Spans(schedule_id=schedule_id, since=since, limit=1_000)
    seen = 0
    while True:
        page = await store.find(query)
        for span in page:
            yield span
        if len(page) < query.limit:
            return
        seen += len(page)
        query = replace(query, after=str(seen))


async def log_end(store: Store) -> int:
    """The number of the last event; the port only reads forwards, so it is found by halves."""
    low, high, step = 0, 0, 1
    while found := await store.tail(high, 1):
        low, step = found[0].seq, 2 * step
        high = low + step
    while low < high:  # an event is at `low`, nothing comes after `high`
        middle = (low + high) // 2
        if found := await store.tail(middle, 1):
            low = found[0].seq
        else:
            high = middle
    return low
