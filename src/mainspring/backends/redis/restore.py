"""The store's method `restore`: write a page of another store's content, if the log ends where the page begins."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec.structs import astuple

from mainspring.backends.redis.database import Database
from mainspring.backends.redis.rows import (
    encode,
    encode_event_row,
    encode_run_row,
    encode_schedule_row,
    encode_span_row,
    encode_trail,
    pack_bytes,
)
from mainspring.backends.redis.scripts import load
from mainspring.backends.redis.settings import RedisSettings
from mainspring.model.events import Event, LogCompacted, RunEvent
from mainspring.model.instant import Ms
from mainspring.ports.store import Page

_RESTORE = load("restore", "common", "restore")


async def restore(db: Database, page: Page) -> bool:
    """Write all rows and events of a page in one call, with the ids and numbers that they have there; return True.

    Rows that exist are overwritten; spans are added. Return False, with nothing written, if the last event of this
    store's log does not have the number `page.after`.
    """
    compacted = [event.seq for event in page.events if isinstance(event, LogCompacted)]
    answer = await db.run_write(
        _RESTORE,
        page.after,
        encode(_pack_runs(page)),
        encode([(row.id, pack_bytes(encode_schedule_row(row)), page.touched.get(row.id, 0)) for row in page.schedules]),
        encode([_pack_event(event) for event in page.events]),
        encode(_pack_spans(page)),
        encode([(body.id, body.data) for body in page.bodies]),
        encode([astuple(gate) for gate in page.gates]),
        encode([(row.schedule_id or "", _tally_field(row.day, row.outcome), row.count) for row in page.tallies]),
        compacted[-1] if compacted else "",
        db.now(None),
        encode([(row.name, row.owner, row.epoch, row.left, row.renewed_at, row.data) for row in page.leases]),
        encode(page.cuts),
    )
    return bool(answer)


def _pack_runs(page: Page) -> list[tuple[Any, ...]]:
    """Return for each run of the page its id, its row with an empty trail, and the trail of its events on this page.

    A trail is the log numbers of a run's events, which are a part of its row. The script appends the third value to the
    trail that the run may have from an earlier page.
    """
    trails: defaultdict[str | None, list[int]] = defaultdict(list)
    for event in page.events:
        if isinstance(event, RunEvent):
            trails[event.run_id].append(event.seq)
    # Ended runs first: another run of the page may hold the unique key that an ended run gave up.
    runs = sorted(page.runs, key=lambda run: run.ended_at is None)
    return [(run.id, pack_bytes(encode_run_row(run, ())), pack_bytes(encode_trail(trails[run.id]))) for run in runs]


def _pack_event(event: Event) -> tuple[Any, ...]:
    """Return an event as lua/restore.lua reads it.

    That is: its number, its row, the id of its run or '', the id of its schedule or '', 1 for a note (an event that
    changes no row), its time.
    """
    is_note = int(event.n is None)
    row = pack_bytes(encode_event_row(event))
    return event.seq, row, event.run_id or "", event.schedule_id or "", is_note, event.at


def _pack_spans(page: Page) -> list[tuple[Any, ...]]:
    """Return for each span of the page its schedule's id, its end, and its member of the schedule's set of spans."""
    last_seq = page.events[-1].seq if page.events else page.after
    return [
        (span.schedule_id, span.through, pack_bytes(encode_span_row(span, last_seq + position)))
        for position, span in enumerate(page.spans)
    ]


async def exists(settings: RedisSettings) -> bool:
    """Return True if an event was ever written under the prefix of these settings.

    The check opens connections of its own and writes nothing. Raises: StoreError if the server cannot be used, or does
    not answer in time.
    """
    db = Database(settings, None)
    await db.open()
    try:
        (found,) = await db.run_commands(("EXISTS", f"{db.key_prefix}seq"))
        return bool(found)
    finally:
        await db.close()


def _tally_field(day: Ms, outcome: str) -> str:
    """Return the field of a tally (a count of removed runs or fires) in its schedule's hash; `day`: days since 1970."""
    return f"{day}\0{outcome}"
