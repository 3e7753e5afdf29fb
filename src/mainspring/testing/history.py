"""The history checker: what should have fired, what ledger and events say did, what the handlers' own log saw.

`read_history` dumps any store through its port, `check` compares; nothing here is shared with the engine except the
values, the triggers and the fold. `docs/proof.md` has the invariants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mainspring.model.instant import Ms
from mainspring.paging import all_rows, all_spans
from mainspring.ports.store import Events, Gates, Runs, Schedules, Store
from mainspring.testing.history_fires import Bounds, check_fires
from mainspring.testing.history_report import INVARIANTS, KINDS, Call, History, Report, Violation
from mainspring.testing.history_runs import (
    check_acknowledged,
    check_calls,
    check_complete,
    check_fold,
    check_overlap,
    check_runs,
    check_tail,
)

__all__ = ["INVARIANTS", "KINDS", "Call", "History", "Report", "Violation", "check", "read_history"]

PAGE = 1_000


async def read_history(store: Store) -> History:
    """Everything the checker looks at, page by page through `find` and `tail`."""
    history = History()
    query = Schedules(states=("active", "paused", "finished", "deleted"), limit=PAGE)
    history.schedules = [row async for row in all_rows(store, query, lambda row: row.id)]
    history.runs = [row async for row in all_rows(store, Runs(oldest_first=True, limit=PAGE), lambda row: row.id)]
    history.events = [row async for row in all_rows(store, Events(limit=PAGE), lambda event: str(event.seq))]
    history.spans = [row async for row in all_spans(store)]
    history.gates = [row async for row in all_rows(store, Gates(limit=PAGE), lambda gate: gate.name)]
    after = 0
    while page := await store.tail(after, PAGE):
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
    """Look for every violation.

    `until`: every fire through it must be accounted for. `late`: how much later than its time a fire after
    `late_since` may be triggered. `lease_ttl`: no lease may be taken away sooner. `healed`: nothing due may be open
    any more, except a handler that began within `longest`. `at_most_once`: tasks with recovery="fail".
    `acknowledged`: runs whose enqueue was answered. `seen`: the seqs a subscriber was handed, in its order.
    `calls` None: the handlers kept no log.
    """
    report = Report(seed=seed, runs=len(history.runs), events=len(history.events))
    check_fires(history, report, Bounds(until=until, late=late, late_since=late_since))
    check_runs(history, report, lease_ttl)
    if calls is not None:
        logged = list(calls)
        report.calls = len(logged)
        check_calls(history, logged, report, at_most_once)
    check_overlap(history, report)
    check_fold(history, report)
    check_tail(history, report, seen)
    check_acknowledged(history, acknowledged, report)
    if healed:
        check_complete(history, report, until, longest)
    return report
