"""The history checker: compares the fires that were owed with a store's rows and events and with the handlers' log.

`read_history` reads a store by its port, and `check` checks what was read. Of the code that it checks, the checker uses
the values of `model/`, the cron triggers, the windows, the table of transitions, the time by which fires are planned
ahead, and the fold of events into rows. `docs/proof.md` lists the invariants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mainspring.model.instant import Ms
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Events, Gates, Runs, Schedules, Store
from mainspring.testing.history.fires import Bounds, check_fires
from mainspring.testing.history.names import check_names
from mainspring.testing.history.report import Call, History, Report
from mainspring.testing.history.runs import (
    check_acknowledged,
    check_calls,
    check_complete,
    check_fold,
    check_overlap,
    check_runs,
    check_tail,
)

HISTORY_PAGE_ROWS = 1_000


async def read_history(store: Store) -> History:
    """Read everything that the checker examines from an open store, page by page, and return it."""
    history = History()
    query = Schedules(states=("active", "paused", "finished", "deleted"), limit=HISTORY_PAGE_ROWS)
    history.schedules = [row async for row in iterate_rows(store, query, lambda row: row.id)]
    history.runs = [
        row async for row in iterate_rows(store, Runs(oldest_first=True, limit=HISTORY_PAGE_ROWS), lambda row: row.id)
    ]
    history.events = [
        row async for row in iterate_rows(store, Events(limit=HISTORY_PAGE_ROWS), lambda event: str(event.seq))
    ]
    history.spans = [row async for row in iterate_spans(store)]
    history.gates = [row async for row in iterate_rows(store, Gates(limit=HISTORY_PAGE_ROWS), lambda gate: gate.name)]
    after = 0
    while page := await store.tail(after, HISTORY_PAGE_ROWS):
        history.tailed.extend(event.seq for event in page)
        after = page[-1].seq
    return history


def check(
    history: History,
    calls: Iterable[Call] | None,
    *,
    until: Ms,
    late: Ms | None = None,
    late_since: Ms = 0,
    lease_ttl: Ms | None = None,
    healed: bool = False,
    longest: Ms = 0,
    at_most_once: Collection[str] = (),
    acknowledged: Iterable[str] = (),
    seen: Iterable[int] | None = None,
    seed: int | None = None,
) -> Report:
    """Check the invariants and return the report; all times are in milliseconds.

    `calls`: the handlers' own log; None if the handlers kept none. `until`: every fire up to this instant must have a
    run or a span. `late`: how late a fire after `late_since` may be planned; None: at any time. `lease_ttl`: a lease
    may expire only after this time; None: not checked. `healed` True: no run that is due at `until` may be open, except
    one that began within the `longest` ms before. `at_most_once`: tasks with recovery="fail". `acknowledged`: ids of
    runs whose enqueue was confirmed to a caller. `seen`: the numbers of the events that a subscriber received, in that
    order; None: not checked. `seed`: printed with the report.
    """
    report = Report(seed=seed, runs=len(history.runs), events=len(history.events))
    check_fires(history, report, Bounds(until=until, late=late, late_since=late_since))
    check_runs(history, report, lease_ttl)
    if calls is not None:
        logged = list(calls)
        report.calls = len(logged)
        check_calls(history, logged, report, at_most_once)
    check_overlap(history, report)
    check_names(history, report)
    check_fold(history, report)
    check_tail(history, report, seen)
    check_acknowledged(history, acknowledged, report)
    if healed:
        check_complete(history, report, until, longest)
    return report
