"""Ledger: account for every planned fire of a store once, and name the differences.

`planned` is computed from definitions in the log, never from rows. Rows, spans and tallies (counts of removed rows)
must cover each planned fire once, and no other. `unexplained` counts differences: a missing row and a surplus row are
two.

In this file, `births` (run id → fire time) are the fires whose first event is in the log, and only fires after the
instant `low` are accounted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import Struct, field

from mainspring.engine.ahead_schedules import describe_ahead, find_ahead
from mainspring.engine.declared_definitions import DeclaredDefinitions
from mainspring.engine.unserved_tasks import find_unserved
from mainspring.ledger.ad_hoc import BEGINNING, AdHoc, account_for_ad_hoc
from mainspring.ledger.coverage import MAX_NAMED_DIFFERENCES, Cover, Difference, Period, Rewind
from mainspring.model.events import (
    Event,
    ScheduleRewound,
    ScheduleSnapshot,
)
from mainspring.model.ids import fire_id
from mainspring.model.instant import DAY_MS, Ms, isoformat
from mainspring.model.retention import Tally
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import OPEN, Run
from mainspring.model.schedule import Definition, Schedule
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Events, Runs, Schedules, Store, Tallies
from mainspring.rules.planning import count_owed, is_fixed_delay, trigger_of
from mainspring.rules.rewind import is_ahead
from mainspring.rules.schedule_draft import creates_fire_run

#: Most accounts of schedules in a ledger. An account with a difference is always included, also beyond this number.
MAX_ACCOUNTS = 1_000
#: Types of the events from which the definitions of a schedule are read.
_DEFINING_TYPES = (
    "ScheduleCreated",
    "ScheduleUpdated",
    "SchedulePaused",
    "ScheduleResumed",
    "ScheduleFinished",
    "ScheduleDeleted",
    "ScheduleRewound",
    "FiresElided",
    "ScheduleSnapshot",
)
#: Types of the first event of a fire's run.
_BIRTH_TYPES = ("RunScheduled", "RunSkipped")


class ScheduleAccount(Struct):
    """Account of one schedule: planned = ended + open + skipped + missed, if nothing is unexplained."""

    schedule_id: str
    name: str
    ns: str = "default"
    state: str = "active"
    #: Fires up to the cursor that the definitions in the log give.
    planned: int = 0
    #: Planned fires whose run has ended, other than as skipped.
    ended: int = 0
    #: Planned fires whose run is open.
    open: int = 0
    #: Reason → planned fires that were skipped for it: their run is in the state skipped, or a span covers them.
    skipped: dict[str, int] = field(default_factory=dict)
    #: Planned fires that were skipped for the reason "missed"; they are not in `skipped`.
    missed: int = 0
    #: Fires that are due and not settled; they are not in `planned`.
    behind: int = 0
    #: Number of differences; the first `MAX_NAMED_DIFFERENCES` of them are in `differences`.
    unexplained: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: Runs from before a rewind that are of no planned fire: the cursor has not passed them, or the definition changed.
    taken_back: int = 0
    #: The cursor, if the schedule was planned more than a minute ahead of the clock; None: it was not.
    ahead: Ms | None = None


class Ledger(Struct):
    """Account of a store: the sums over its schedules, and the ad-hoc runs.

    `unexplained` and `differences` include those of the schedules and of the ad-hoc runs. `unexplained` must be 0.
    """

    now: Ms
    #: Fires before this instant, and ad-hoc runs created before it, are left out. None: nothing is left out.
    since: Ms | None = None
    #: True if `since` was set back to the start of its day, because tallies count by the day.
    rounded: bool = False
    planned: int = 0
    ended: int = 0
    open: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    behind: int = 0
    unexplained: int = 0
    ad_hoc: AdHoc = field(default_factory=AdHoc)
    #: The accounts of single schedules: at most `MAX_ACCOUNTS`, and beyond these all with a difference.
    schedules: list[ScheduleAccount] = field(default_factory=list)
    #: Number of schedules that the sums contain.
    schedules_total: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: What keeps planned work from being done although nothing is unexplained, one line for each cause.
    warnings: list[str] = field(default_factory=list)
    #: Number of schedules that were planned ahead of the clock.
    ahead: int = 0


async def ledger(store: Store, now: Ms, since: Ms | None = None, ns: str | None = None) -> Ledger:
    """Return the account of a store: of its fires, and of the runs that no schedule planned.

    `since`: leave out fires before this instant and ad-hoc runs created before it; None: leave out nothing. If rows
    were removed, `since` is set back to the start of its day, because removed rows are counted by the day. `ns`: leave
    out other namespaces; None: include all. `now` decides which fires are due, for `behind`.
    """
    rounded = since is not None and since % DAY_MS != 0 and bool(await store.find(Tallies(limit=1)))
    since = since // DAY_MS * DAY_MS if rounded and since is not None else since
    low = BEGINNING if since is None else since - 1
    book = Ledger(now=now, since=since, rounded=rounded)
    known: set[str] = set()
    later: dict[str, Schedule] = {}
    every = Schedules(ns=ns, states=("active", "paused", "finished", "deleted"), limit=500)
    async for row in iterate_rows(store, every, lambda s: s.id):
        known.add(row.id)
        if (drift := await DeclaredDefinitions(store).find_drift(row)) is not None:
            book.warnings.append(drift.describe())
        line = await _account_for(store, row, now, low, None)
        if line is None:
            later[row.id] = row
        else:
            _add(book, line)
    births = await _find_births(store, later.keys(), low) if later else {}
    for sid, row in later.items():
        line = await _account_for(store, row, now, low, births.get(sid, {}))
        assert line is not None
        _add(book, line)
    await _find_orphans(store, book, known, low, ns)
    book.ad_hoc = await account_for_ad_hoc(store, low, ns)
    book.unexplained += book.ad_hoc.unexplained
    book.differences += book.ad_hoc.differences
    book.warnings += [unserved.describe() for unserved in await find_unserved(store, ns, now)]
    book.warnings += [describe_ahead(row, now) for row in (await find_ahead(store, ns, now)).values()]
    return book


def _add(book: Ledger, line: ScheduleAccount) -> None:
    """Add the account `line` of a schedule to the sums of the ledger `book`.

    List the account, too, if it has a difference, is ahead, or if fewer than `MAX_ACCOUNTS` are listed.
    """
    book.schedules_total += 1
    book.planned += line.planned
    book.ended += line.ended
    book.open += line.open
    book.missed += line.missed
    book.behind += line.behind
    book.ahead += line.ahead is not None
    book.unexplained += line.unexplained
    book.differences += line.differences
    for reason, count in line.skipped.items():
        book.skipped[reason] = book.skipped.get(reason, 0) + count
    if line.unexplained or line.ahead is not None or len(book.schedules) < MAX_ACCOUNTS:
        book.schedules.append(line)


# ── one schedule ────────────────────────────────────────────────────────────


async def _account_for(
    store: Store, row: Schedule, now: Ms, low: Ms, births: dict[str, Ms] | None
) -> ScheduleAccount | None:
    """Return the account of one schedule's fires after `low`; None if `births` is None and is needed.

    `births`: run id → fire time, from the log. They are needed for a fixed delay. They are also needed if tallies
    (counts of removed rows) exist and their sum is not the number of fires without a row and a span. Why the caller
    tries without `births` first: reading the log is slow, and one reading serves all schedules. `now` decides which
    fires are due.
    """
    line = ScheduleAccount(row.id, row.name, row.ns, row.state)
    line.ahead = row.cursor if is_ahead(row, now) else None
    periods, rewinds = await _find_periods(store, row, low)
    cover = Cover(row.id, row.name, periods, rewinds)
    _check_revision(cover, row)
    outcomes, line.taken_back = await _count_rows(store, row, cover, low)
    spans: Counter[str] = Counter()
    async for span in iterate_spans(store, row.id, None if low == BEGINNING else low):
        spans[span.reason] += cover.add_span(span, low)
    cover.check_overlaps()
    uncovered = cover.count_uncovered()
    tallies = [t for t in await store.find(Tallies(schedule_id=row.id, limit=1_000_000)) if _is_in_window(t, low)]
    tallied = sum(t.count for t in tallies)
    if births is None and (cover.has_fixed or (tallied and uncovered != tallied)):
        return None
    births = births or {}
    tallied_in_sequence = _compare_tallies(
        cover, uncovered, tallies, births, windowed=low != BEGINNING or bool(rewinds)
    )
    line.planned = sum(s.planned for s in periods)
    if cover.has_fixed:
        line.planned += cover.check_fixed(births) + max(0, tallied - tallied_in_sequence)
    _fill_outcomes(
        line, outcomes, spans, tallies, excess=0 if cover.has_fixed else max(0, tallied - tallied_in_sequence)
    )
    line.behind = _count_behind(row, now)
    line.unexplained, line.differences = cover.unexplained, cover.differences
    return line


def _check_revision(cover: Cover, row: Schedule) -> None:
    """Report in `cover` a schedule that no event defines, or whose row does not have the last revision of the log."""
    if not cover.periods:
        cover.add_difference("definition", "no event of the log defines this schedule", count=1)
    elif cover.periods[-1].definition.revision != row.revision:
        logged = cover.periods[-1].definition.revision
        cover.add_difference("revision", f"the row has revision {row.revision}, the log has {logged}", count=1)


async def _find_periods(store: Store, row: Schedule, low: Ms) -> tuple[list[Period], list[Rewind]]:
    """Return the schedule's definitions in the log, oldest first, each with the interval in which it owes fires.

    The part of an interval up to `low` is left out. The second value are the rewinds of the schedule.
    """
    stream = [
        e async for e in iterate_rows(store, Events(schedule_id=row.id, types=_DEFINING_TYPES, limit=20_000), _seq)
    ]
    found = fold_definitions(stream)
    ends = _definition_ends(row, found)
    periods: list[Period] = []
    for definition, end in zip(found, ends, strict=True):
        first, last = max(definition.since, low), end
        fixed = is_fixed_delay(definition.spec)
        trigger = None if fixed else trigger_of(definition.spec, definition.anchor)
        planned = 0 if fixed or last <= first else count_owed(definition.spec, definition.anchor, first, last)
        periods.append(Period(definition, first, max(first, last), trigger, planned))
    return periods, _find_rewinds(stream)


def _find_rewinds(stream: list[Event]) -> list[Rewind]:
    """Return the rewinds in the events of one schedule. A snapshot stands for those before it."""
    found: list[Rewind] = []
    for event in stream:
        if isinstance(event, ScheduleRewound):
            found.append(Rewind(event.to, event.from_, event.seq))
        elif isinstance(event, ScheduleSnapshot) and event.state.rewound is not None:
            found.append(Rewind(BEGINNING, event.state.rewound, event.seq))
    return found


def _definition_ends(row: Schedule, found: tuple[Definition, ...]) -> list[Ms]:
    """Return, for each of the definitions `found`, the last instant at which it owes fires.

    That is the start of the next definition or, for the last one, the schedule's cursor. If the definition has an
    earlier `until`, the last instant is this `until`.
    """
    ends = [definition.since for definition in found[1:]] + ([row.cursor] if found else [])
    return [end if d.until is None else min(end, d.until) for end, d in zip(ends, found, strict=True)]


async def _count_rows(
    store: Store, row: Schedule, cover: Cover, low: Ms
) -> tuple[Counter[tuple[str, str | None]], int]:
    """Add the row of each fire after `low` to `cover`; return (state, reason) → number of these rows.

    The reason is None unless the state is skipped. The second value is the number of rows that were left out, because a
    rewind took their fires back and no definition has planned them again.
    """
    outcomes: Counter[tuple[str, str | None]] = Counter()
    since = None if low == BEGINNING else low
    taken_back = 0
    query = Runs(schedule_id=row.id, origin="fire", fired_since=since, oldest_first=True, limit=1_000)
    async for run in iterate_rows(store, query, _run_id):
        rewinds = cover.find_rewinds(run)
        if rewinds and not cover.is_planned(run) and await _was_created_before(store, run, rewinds):
            taken_back += 1
            continue
        outcomes[run.state.value, run.reason or "skipped" if run.state == "skipped" else None] += 1
        cover.add_row(run)
    return outcomes, taken_back


async def _was_created_before(store: Store, run: Run, rewinds: list[Rewind]) -> bool:
    """Return True if the log created the run before one of the rewinds."""
    births = await store.find(Events(run_id=run.id, types=_BIRTH_TYPES, limit=1))
    return any(event.seq < rewind.seq for event in births for rewind in rewinds)


async def _find_births(store: Store, schedules: Collection[str], low: Ms) -> dict[str, dict[str, Ms]]:
    """Return schedule id → run id → fire time, for the fires after `low` whose run has its first event in the log.

    `schedules`: ids of the schedules to consider. The whole log is read, once.
    """
    found: dict[str, dict[str, Ms]] = {}
    async for event in iterate_rows(store, Events(types=_BIRTH_TYPES, limit=2_000), _seq):
        fire, sid = getattr(event, "fire_time", None), event.schedule_id
        if sid in schedules and creates_fire_run(event) and fire is not None and fire > low:
            run_id = event.run_id or fire_id(sid or "", str(fire), fire)
            found.setdefault(sid or "", {})[run_id] = fire
    return found


def _compare_tallies(
    cover: Cover, uncovered: int, tallies: list[Tally], births: dict[str, Ms], *, windowed: bool
) -> int:
    """Compare tallies (counts of removed rows) with the uncovered fires, and report in `cover` what differs.

    `uncovered` is the number of fires that have no row and no span. `births`: run id → fire time, from the log; these
    fires were not removed, so one of them without a row is missing for certain. `windowed`: True if the account leaves
    out fires before an instant.

    Return how many tallied fires belong to triggers whose fires can be computed. The other tallied fires belong to
    fixed delays or, if the account is `windowed`, lie before that instant.
    """
    tallied = sum(t.count for t in tallies)
    # Retention removed the events of a tallied fire. So a fire without a row whose first event exists is missing.
    held = set(cover.times)
    certain = [fire for fire in births.values() if fire not in held and cover.owes(fire)] if uncovered else []
    left = uncovered - tallied
    if cover.has_fixed:
        left = max(len(certain), left)
    by_day: dict[int, int] = {}
    for tally in tallies:
        by_day[tally.day] = by_day.get(tally.day, 0) + tally.count
    if left > 0:
        cover.name_missing(left, sorted(certain), by_day)
    elif left < 0 and not windowed and not cover.has_fixed:
        cover.add_difference("tally", f"the tallies hold {-left} more than were planned", count=-left)
        return tallied
    return min(tallied, uncovered - max(0, left))


def _fill_outcomes(
    line: ScheduleAccount,
    outcomes: Counter[tuple[str, str | None]],
    spans: Counter[str],
    tallies: list[Tally],
    *,
    excess: int,
) -> None:
    """Fill `ended`, `open`, `skipped` and `missed` of the account `line` from rows, spans and tallies.

    `outcomes`: (state, reason) → number of rows. `spans`: reason → number of fires in spans. `tallies`: counts of
    removed rows. `excess`: how many fires of removed spans are left out, because they lie before the account begins.
    """
    skipped: Counter[str] = Counter()
    for (state, reason), count in outcomes.items():
        if reason is not None:
            skipped[reason] += count
        elif state in OPEN:
            line.open += count
        else:
            line.ended += count
    for reason, count in spans.items():
        skipped[reason] += count
    for tally in tallies:
        kind, _, outcome = tally.outcome.partition("/")
        count = tally.count
        if kind == "span" and excess:
            cut = min(excess, count)
            count, excess = count - cut, excess - cut
        if kind == "span" or outcome == "skipped":
            skipped[outcome] += count
        else:
            line.ended += count
    line.missed = skipped.pop("missed", 0)
    line.skipped = {reason: count for reason, count in sorted(skipped.items()) if count}


def _count_behind(row: Schedule, now: Ms) -> int:
    """Return how many fires of the schedule are due at `now` and not settled, as far as `max_runs` allows them."""
    if row.state != "active" or row.next_at is None or row.next_at > now:
        return 0
    left = None if row.spec.max_runs is None else max(0, row.spec.max_runs - row.fired)
    due = 1 if is_fixed_delay(row.spec) else count_owed(row.spec, row.anchor, row.cursor, now)
    return due if left is None else min(due, left)


def _is_in_window(tally: Tally, low: Ms) -> bool:
    """Return True if a tally (count of removed rows) is of planned fires and of a day that begins after `low`.

    A tally of ad-hoc runs is left out.
    """
    kind = tally.outcome.partition("/")[0]
    return kind in ("fire", "span") and tally.day * DAY_MS > low


# ── fires without a schedule row, and runs that no schedule planned ─────────


async def _find_orphans(store: Store, book: Ledger, known: set[str], low: Ms, ns: str | None) -> None:
    """Report in `book` schedules of the log that have no row, and runs of planned fires whose schedule has no row.

    `known`: ids of the schedules that have a row. Runs of fires up to `low` are left out. `ns`: leave out other
    namespaces; None: include all.
    """
    gone: dict[str, str] = {}
    query = Events(types=("ScheduleCreated", "ScheduleSnapshot"), limit=1_000)
    async for event in iterate_rows(store, query, _seq):
        sid = event.schedule_id or ""
        if sid not in known and (ns is None or event.ns == ns):
            gone[sid] = getattr(event, "name", None) or sid
    named: list[Difference] = [
        Difference("schedule", f"the row of schedule {name!r} is gone, its events are there", sid)
        for sid, name in gone.items()
    ]
    count = len(gone)
    since = None if low == BEGINNING else low
    fires = Runs(origin="fire", ns=ns, fired_since=since, oldest_first=True, limit=1_000)
    async for run in iterate_rows(store, fires, _run_id):
        if run.schedule_id not in known:
            count += 1
            if len(named) < MAX_NAMED_DIFFERENCES:
                named.append(_false_row(run, "names a schedule that does not exist"))
    book.unexplained += count
    book.differences += named


def _false_row(run: Run, why: str) -> Difference:
    at = None if run.fire_time is None else isoformat(run.fire_time)
    return Difference("false", f"run {run.id} {why}", run.schedule_id, run.id, at)


def _seq(event: Event) -> str:
    return str(event.seq)


def _run_id(run: Run) -> str:
    return run.id
