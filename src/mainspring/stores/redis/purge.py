"""Retention: whole streams go, tallies, snapshots and one note say what they were. Two calls, the second one atomic."""

from __future__ import annotations

from typing import Any

from mainspring.model.events import LogCompacted, ScheduleSnapshot, definitions, encode_data
from mainspring.model.instant import Ms
from mainspring.ports.store import Purged, Retention
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.rows import encode, event_rest, raw, read_event, read_run, read_schedule
from mainspring.stores.redis.scripts import load

_TIDY = load("tidy", "common", "forgetting", "tidy")
_PURGE = load("purge", "common", "forgetting", "purge")


def _front(note: LogCompacted) -> bytes:
    """A note as it is stored, up to its own fields: those the script knows."""
    whole, own = event_rest(note, None), encode(encode_data(note))
    assert whole.endswith(own)
    return whole[: -len(own)]


_COMPACTED = _front(LogCompacted(through=1, streams=1, events=1, tallies=1, digest="-"))


async def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove what retention allows, at most `limit` of each kind."""
    most = "" if policy.at_most is None else policy.at_most
    _, more, notes, leases, kept, runs, spans, gone, plans = await db.write(
        _TIDY,
        db.now(now),
        policy.ended_before,
        limit,
        int(policy.keep_dead),
        most,
        policy.lease_prefix,
        policy.leases_before,
    )
    small = Purged(more=bool(more), notes=notes, leases=leases, kept=kept)
    if not (runs or spans or gone):
        return small
    groups = _groups(runs, spans, plans)
    deleted = [(one.decode(), raw(row)) for one, row in gone]
    done = await db.write(_PURGE, db.now(now), encode(groups), encode(deleted), _COMPACTED)
    runs_gone, events, spans_gone, bodies, schedules, changed = done
    return Purged(
        runs=runs_gone,
        events=events,
        spans=spans_gone,
        bodies=bodies,
        more=small.more or changed > 0,
        notes=notes,
        schedules=schedules,
        leases=leases,
        kept=kept,
    )


def _groups(runs: list[bytes], spans: list[list[bytes]], plans: list[list[bytes]]) -> list[list[Any]]:
    """What goes, by schedule: its row as it was seen, the snapshot of it, the runs and when they ended, the spans."""
    groups: dict[str, list[Any]] = {}
    for name, row, *stream in plans:
        numbered = sorted(zip(map(int, stream[::2]), stream[1::2], strict=True))
        schedule = read_schedule(row)
        moves = [read_event(seq, event) for seq, event in numbered if event is not None]
        snapshot = ScheduleSnapshot(
            ns=schedule.ns, schedule_id=schedule.id, state=schedule, definitions=definitions(moves)
        )
        groups[name.decode()] = [name.decode(), raw(row), raw(event_rest(snapshot, None)), [], []]
    for row in runs:
        run = read_run(row)
        group = groups.setdefault(run.schedule_id or "", [run.schedule_id or "", "", "", [], []])
        group[3] += (run.id, run.ended_at)
    for name, *members in spans:
        group = groups.setdefault(name.decode(), [name.decode(), "", "", [], []])
        group[4] += map(raw, members)
    return list(groups.values())
