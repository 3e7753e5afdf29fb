"""Paging: read all rows of a query page by page, and find the end of the event log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from msgspec.structs import replace

from mainspring.model.instant import Ms
from mainspring.model.schedule import Span
from mainspring.ports.store import Query, Spans, Store

T = TypeVar("T")


async def iterate_rows(store: Store, query: Query[T], key: Callable[[T], str]) -> AsyncIterator[T]:
    """Yield every row of a query, read in pages of `query.limit` rows.

    `key(row)` returns the row's key, which becomes `Query.after` of the next page.
    """
    while True:
        page = await store.find(query)
        for row in page:
            yield row
        if len(page) < query.limit:
            return
        query = replace(query, after=key(page[-1]))


async def iterate_spans(store: Store, schedule_id: str | None = None, since: Ms | None = None) -> AsyncIterator[Span]:
    """Yield every span, or those of one schedule, in the order of (schedule, through).

    With `since`, yield only spans that end after that instant. `iterate_rows` cannot read spans, because they have no
    key: a page of spans begins after a number of rows.
    """
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


async def find_log_end(store: Store) -> int:
    """Return the number of the last event, 0 for an empty log.

    The store reads its log only forwards, so the end is found by doubling a step and then bisecting.
    """
    low, high, step = 0, 0, 1
    while found := await store.tail(high, 1):
        low, step = found[0].seq, 2 * step
        high = low + step
    while low < high:  # there is an event at `low`, and none after `high`
        middle = (low + high) // 2
        if found := await store.tail(middle, 1):
            low = found[0].seq
        else:
            high = middle
    return low
