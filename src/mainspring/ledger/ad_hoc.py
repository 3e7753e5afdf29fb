"""Account of the runs that no schedule planned: compare their rows with the events that created them."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.ledger.coverage import MAX_NAMED_DIFFERENCES, Difference
from mainspring.model.events import Event, RunScheduled
from mainspring.model.instant import DAY_MS, Ms, isoformat
from mainspring.model.run import ENDED, OPEN, Run, RunOrigin
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Events, Runs, Store, Tallies

#: Origins of the runs that no schedule planned.
_AD_HOC: tuple[RunOrigin, ...] = ("enqueue", "trigger", "backfill", "child")
#: Number of runs that one query asks for by id.
RUNS_PER_READ = 500
#: `low` of an account of all fires: an instant before every fire.
BEGINNING: Ms = -(1 << 62)


class AdHoc(Struct):
    """Account of runs that no schedule planned: enqueued = ended + open, if nothing is unexplained."""

    #: Runs that were created, as the log and the tallies show.
    enqueued: int = 0
    ended: int = 0
    open: int = 0
    #: Number of differences; the first `MAX_NAMED_DIFFERENCES` of them are in `differences`.
    unexplained: int = 0
    differences: list[Difference] = field(default_factory=list)


async def account_for_ad_hoc(store: Store, low: Ms, ns: str | None) -> AdHoc:
    """Return the account of the runs of namespace `ns` that were created after `low` and that no schedule planned.

    `ns` None: of all namespaces. Removed runs are included only then, because their counts (tallies) have no namespace.
    """
    account = AdHoc()
    since = None if low == BEGINNING else low + 1
    matched = await _match_ad_hoc_births(store, account, since, ns)
    rows = 0
    for origin in _AD_HOC:
        query = Runs(origin=origin, ns=ns, created_since=since, oldest_first=True, limit=1_000)
        async for run in iterate_rows(store, query, _run_id):
            rows += 1
            account.ended += run.state in ENDED
            account.open += run.state in OPEN
    if rows != matched:
        await _report_runs_without_event(
            store, account, Runs(ns=ns, created_since=since, oldest_first=True, limit=1_000)
        )
    if ns is None:
        for tally in await store.find(Tallies(limit=1_000_000)):
            if tally.outcome.startswith("adhoc/") and tally.day * DAY_MS > low:
                account.enqueued += tally.count
                account.ended += tally.count
    return account


async def _match_ad_hoc_births(store: Store, account: AdHoc, since: Ms | None, ns: str | None) -> int:
    """Count in `account` the ad-hoc runs whose RunScheduled event is in the log, and report those that have no row.

    `since`: leave out older events; None: take all. `ns`: leave out other namespaces; None: take all. Return how many
    of these runs have a row.
    """
    matched = 0
    page: list[str] = []
    async for event in iterate_rows(store, Events(types=("RunScheduled",), since=since, limit=1_000), _seq):
        assert isinstance(event, RunScheduled)
        if event.origin == "fire" or (ns is not None and event.ns != ns):
            continue
        account.enqueued += 1
        if event.run_id is None:
            text = f"event {event.seq} enqueued {event.task!r} at {isoformat(event.at)}, and the run has no row"
            _add_difference(account, Difference("missing", text))
            continue
        page.append(event.run_id)
        if len(page) == RUNS_PER_READ:
            matched += await _match_rows(store, account, page)
            page = []
    return matched + (await _match_rows(store, account, page) if page else 0)


async def _match_rows(store: Store, account: AdHoc, run_ids: list[str]) -> int:
    """Report in `account` the ad-hoc runs with these ids that have no row; return how many have a row."""
    rows = await store.find(Runs(ids=tuple(run_ids), limit=len(run_ids)))
    found = {run.id for run in rows if run.origin != "fire"}
    for run_id in run_ids:
        if run_id not in found:
            text = f"run {run_id} was enqueued and has no row"
            _add_difference(account, Difference("missing", text, None, run_id))
    return len(found)


async def _report_runs_without_event(store: Store, account: AdHoc, query: Runs) -> None:
    """Report in `account` those ad-hoc runs that `query` finds and whose first event is not in the log.

    One more query is needed for each row. So this is called only if the numbers of rows and of matched events differ.
    """
    for origin in _AD_HOC:
        async for run in iterate_rows(store, replace(query, origin=origin), _run_id):
            births = await store.find(Events(run_id=run.id, types=("RunScheduled",), limit=1))
            if not any(isinstance(event, RunScheduled) and event.origin != "fire" for event in births):
                text = f"run {run.id} has a row and was never enqueued"
                _add_difference(account, Difference("false", text, run.schedule_id, run.id))


def _add_difference(account: AdHoc, difference: Difference) -> None:
    """Count a difference in `account`, and keep it there if it is one of the first `MAX_NAMED_DIFFERENCES`."""
    account.unexplained += 1
    if len(account.differences) < MAX_NAMED_DIFFERENCES:
        account.differences.append(difference)


def _seq(event: Event) -> str:
    return str(event.seq)


def _run_id(run: Run) -> str:
    return run.id
