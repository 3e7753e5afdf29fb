"""The store's method `purge`: remove rows and events, and write tallies, snapshots and one note in their place.

A tally counts removed runs or fires. A note is an event that changes no row. There are two calls. First, tidy.lua
removes notes, leases and key-value entries, and finds runs, spans and deleted schedules that may be removed. Then
Python builds a snapshot of each schedule of these runs and spans, from the schedule's events. Last, purge.lua removes
what tidy.lua found, except schedules that have changed meanwhile, with their runs and spans.
"""

from __future__ import annotations

from typing import Any

from mainspring.backends.redis.database import Database
from mainspring.backends.redis.rows import encode, encode_event_rest, pack_bytes, read_event, read_run, read_schedule
from mainspring.backends.redis.scripts import load
from mainspring.model.event_codec import encode_data
from mainspring.model.events import LogCompacted
from mainspring.model.instant import Ms
from mainspring.model.retention import Purged, Retention
from mainspring.rules.retention import snapshot_schedule

_TIDY = load("tidy", "common", "removal", "tidy")
_PURGE = load("purge", "common", "removal", "purge")


def _encode_without_data(note: LogCompacted) -> bytes:
    """Return the encoded row of a note (an event that changes no row) without its last field, the data.

    lua/purge.lua appends the data when it has counted the removed rows.
    """
    whole, own = encode_event_rest(note, None), encode(encode_data(note))
    assert whole.endswith(own)
    return whole[: -len(own)]


#: The encoded row of the note about a purge, without its data. The values given here are all in the data, which is cut
#: off, so none of them is stored.
_COMPACTED_FRONT = _encode_without_data(LogCompacted(through=1, streams=1, events=1, tallies=1, digest="-"))


async def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove rows that the retention policy no longer keeps, at most `limit` of each kind.

    Return how many rows of each kind were removed; `more` is True if another call may remove further rows. `now`: the
    instant of a test; None: the server's time.
    """
    max_ended = "" if policy.at_most is None else policy.at_most
    _, more, notes, leases, kept, runs, spans, gone, plans = await db.run_write(
        _TIDY,
        db.now(now),
        policy.ended_before,
        limit,
        int(policy.keep_dead),
        max_ended,
        policy.lease_prefix,
        policy.leases_before,
    )
    removed = Purged(more=bool(more), notes=notes, leases=leases, kept=kept)
    if not (runs or spans or gone):
        return removed
    groups = _group_by_schedule(runs, spans, plans)
    deleted = [(one.decode(), pack_bytes(row)) for one, row in gone]
    answer = await db.run_write(_PURGE, db.now(now), encode(groups), encode(deleted), _COMPACTED_FRONT)
    runs_gone, events, spans_gone, bodies, schedules, changed = answer
    return Purged(
        runs=runs_gone,
        events=events,
        spans=spans_gone,
        bodies=bodies,
        more=removed.more or changed > 0,
        notes=notes,
        schedules=schedules,
        leases=leases,
        kept=kept,
    )


def _group_by_schedule(runs: list[bytes], spans: list[list[bytes]], plans: list[list[bytes]]) -> list[list[Any]]:
    """Return the rows to remove in groups by schedule, as purge.lua reads them.

    `runs`: rows of runs. `spans`: for each schedule its id, then its spans. `plans`: for each schedule its id and row,
    then numbers and rows of its events, from which its snapshot is built.

    A group has the schedule's id, its row as tidy.lua read it, its snapshot, ids of runs with the times of their ends,
    and spans. Runs without a schedule form the group with the id ''. In this group, and for a schedule without a row,
    row and snapshot are ''.
    """
    groups: dict[str, list[Any]] = {}
    for name, row, *answer in plans:
        numbered = sorted(zip(map(int, answer[::2]), answer[1::2], strict=True))
        schedule = read_schedule(row)
        events = [read_event(seq, event) for seq, event in numbered if event is not None]
        snapshot = snapshot_schedule(schedule, events)
        groups[name.decode()] = [name.decode(), pack_bytes(row), pack_bytes(encode_event_rest(snapshot, None)), [], []]
    for row in runs:
        run = read_run(row)
        group = groups.setdefault(run.schedule_id or "", [run.schedule_id or "", "", "", [], []])
        group[3] += (run.id, run.ended_at)
    for name, *members in spans:
        group = groups.setdefault(name.decode(), [name.decode(), "", "", [], []])
        group[4] += map(pack_bytes, members)
    return list(groups.values())
