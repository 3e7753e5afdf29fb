"""Verify the rows of a store against its event log: replay every event, fold runs and schedules, and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.ledger.replay import Mismatch, Replay, Report
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import (
    Event,
)
from mainspring.model.ids import is_body_id_of
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Bodies, Gates, Query, Runs, Schedules, Store, Tallies

T = TypeVar("T")
EVENTS_PER_READ = 2_000
#: More events than any log has. If reading fails even this far behind a bad event, the log as a whole cannot be read.
MAX_LOG_EVENTS = 1 << 48
_UNREADABLE = (StoreError, msgspec.MsgspecError, LookupError, ValueError, TypeError)  # raised for an unreadable row


async def verify(store: Store) -> Report:
    """Replay the log, compare it with every row, and return the differences. Raises: StoreUnavailable on an outage."""
    report = Report()
    replay = Replay(report)
    async for event in _read_log(store, report):
        replay.take(event)
    replay.end()
    bodies: dict[str, str] = {}
    holders = await _check_runs(store, report, replay, bodies)
    await _check_schedules(store, report, replay, bodies)
    await _check_spans(store, report, replay)
    await _check_bodies(store, report, bodies)
    await _check_gates(store, report, holders)
    await _check_tallies(store, report, replay)
    return report


async def _check_runs(store: Store, report: Report, replay: Replay, bodies: dict[str, str]) -> Counter[str]:
    """Compare every run row with the log, and return for each gate name how many running runs hold the gate.

    The payloads that rows name are added to `bodies`: payload id → the first run that names it, as text ("run …").
    """
    holders: Counter[str] = Counter()
    async for run in _read_runs(store, report, replay):
        report.runs += 1
        if run.body is not None:
            bodies.setdefault(run.body, f"run {run.id}")
        if run.state is State.RUNNING:
            holders.update(run.gates)
        replay.compare_run(run)
    replay.report_runs_without_row()
    return holders


async def _check_schedules(store: Store, report: Report, replay: Replay, bodies: dict[str, str]) -> None:
    """Compare all schedule rows with the log, and add the differences to `report`.

    The payloads that rows name are added to `bodies`: payload id → the first row that names it, as text ("schedule …").
    """
    async for schedule in _read_schedules(store, report, replay):
        report.schedules += 1
        if schedule.spec.body is not None:
            bodies.setdefault(schedule.spec.body, f"schedule {schedule.id}")
        replay.compare_schedule(schedule)
    replay.report_schedules_without_row()


# ── reading, with unreadable rows and events ────────────────────────────────
async def _read_log(store: Store, report: Report) -> AsyncIterator[Event]:
    """Yield the readable events of the log in order, and count them. Report consecutive unreadable events as one."""
    after = 0
    while True:
        limit = EVENTS_PER_READ
        while True:
            try:
                page = await store.tail(after, limit)
                break
            except StoreUnavailable:
                raise
            except _UNREADABLE as error:
                if limit > 1:
                    limit //= 2
                    continue
                bad, page = await _skip_bad_event(store, after), []
                report.events += 1
                report.add("event", str(bad), f"event {bad} cannot be read: {_describe(error)}")
                after = bad
                break
        report.events += len(page)
        for event in page:
            yield event
        if page:
            after = page[-1].seq
        elif limit == EVENTS_PER_READ:
            return


async def _skip_bad_event(store: Store, after: int) -> int:
    """Return the number after which the log can be read again; the event right after number `after` is unreadable.

    From 64 numbers on, it may skip readable events. Raises: StoreUnavailable; the store's error if every read fails.
    """
    low, high, step = after, after, 1  # reading after `low` fails; find a `high` after which it does not
    while (error := await _find_read_error(store, high := low + step)) is not None:
        if high - after > MAX_LOG_EVENTS:
            raise error  # the log cannot be read, not one event of it
        low, step = high, (1 if high - after < 64 else step * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await _find_read_error(store, middle) is None else (middle, high)
    return high


async def _find_read_error(store: Store, after: int) -> Exception | None:
    """Return the error of reading the event after number `after`; None without an error. Raises: StoreUnavailable."""
    try:
        await store.tail(after, 1)
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        return error
    return None


async def _read_runs(store: Store, report: Report, replay: Replay) -> AsyncIterator[Run]:
    """Yield the run rows. If a page cannot be read, report it, and then yield rows that are read one by one.

    These are the rows of those runs of the log that are not in `replay.seen` yet. The caller adds each row's id to it
    before it asks for the next row. Raises: StoreUnavailable.
    """
    try:
        async for run in iterate_rows(store, Runs(oldest_first=True, limit=1_000), lambda run: run.id):
            yield run
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("run", "-", f"a page of run rows cannot be read: {_describe(error)}")
    for run_id in [run_id for run_id in replay.runs if run_id not in replay.seen]:
        for run in await _read_row(store, report, Runs(id=run_id), "run", run_id, replay):
            yield run


async def _read_schedules(store: Store, report: Report, replay: Replay) -> AsyncIterator[Schedule]:
    """Yield the schedule rows as `_read_runs` yields runs; the caller must add their ids to `replay.seen` likewise."""
    query = Schedules(states=("active", "paused", "finished", "deleted"), limit=500)
    try:
        async for schedule in iterate_rows(store, query, lambda s: s.id):
            yield schedule
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("schedule", "-", f"a page of schedule rows cannot be read: {_describe(error)}")
    for sid in [sid for sid in replay.schedules if sid not in replay.seen]:
        for schedule in await _read_row(store, report, replace(query, id=sid), "schedule", sid, replay):
            yield schedule


async def _read_row(store: Store, report: Report, query: Query[T], kind: str, row_id: str, replay: Replay) -> list[T]:
    """Return the row with the id `row_id`, which `query` asks for, as a list of one or, if it does not exist, empty.

    If the row cannot be read, report it, return an empty list, and add the id to `replay.seen`: the row is then not
    reported as missing as well. `kind`: "run" or "schedule". Raises: StoreUnavailable if the store cannot be reached.
    """
    try:
        return await store.find(query)
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add(kind, row_id, f"the row cannot be read: {_describe(error)}")
        replay.seen.add(row_id)
        return []


def _describe(error: Exception) -> str:
    return f"unknown type {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)


async def _check_spans(store: Store, report: Report, replay: Replay) -> None:
    async for span in iterate_spans(store):
        report.spans += 1
        replay.compare_span(span)
    replay.report_spans_without_row()


async def _check_bodies(store: Store, report: Report, wanted: dict[str, str]) -> None:
    """Report payloads that do not exist or do not match their id.

    `wanted`: payload id → a row that refers to it, as text for the report, such as "run …".
    """
    ids = list(wanted)
    for start in range(0, len(ids), 500):
        part = tuple(ids[start : start + 500])
        found = {body.id: body.data for body in await store.find(Bodies(ids=part, limit=len(part)))}
        report.bodies += len(found)
        for name in part:
            if name not in found:
                report.add("body", name, f"the payload that {wanted[name]} names does not exist")
            elif not is_body_id_of(name, found[name].encode()):
                report.add("body", name, f"the payload that {wanted[name]} names is not the one it was")


async def _check_gates(store: Store, report: Report, holders: Counter[str]) -> None:
    """Report gates whose number of held slots is wrong. `holders`: gate name → number of running runs that hold it."""
    async for gate in iterate_rows(store, Gates(limit=1_000), lambda gate: gate.name):
        report.gates += 1
        if gate.held != holders[gate.name]:
            report.add("gate", gate.name, f"held is {gate.held} in the row, {holders[gate.name]} running runs hold it")


async def _check_tallies(store: Store, report: Report, replay: Replay) -> None:
    """Report tallies (counts of removed rows) without a compaction of the log, or removed runs without any tally."""
    report.tallies = len(await store.find(Tallies(limit=1_000_000)))
    if report.tallies and not replay.compactions:
        report.add("tally", "-", f"{report.tallies} tallies, and the log was never compacted")
    elif replay.compacted_runs and not report.tallies:
        report.add("tally", "-", f"retention removed {replay.compacted_runs} runs, and there is no tally of them")


__all__ = ["Mismatch", "Report", "verify"]
