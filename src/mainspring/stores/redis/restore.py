"""Another store's content, written as it is: a page in one call, if the log ends where the page begins."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import astuple

from mainspring.model.events import LogCompacted, RunEvent
from mainspring.model.instant import Ms
from mainspring.ports.store import Page
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.rows import encode, raw, write_event, write_run, write_schedule, write_span
from mainspring.stores.redis.scripts import load
from mainspring.stores.redis.settings import RedisSettings

_RESTORE = load("restore", "common", "restore")
_SEQ_BYTES = 6


async def restore(db: Database, page: Page) -> bool:
    """All of the page, or nothing when the log ends elsewhere."""
    trails: defaultdict[str | None, list[int]] = defaultdict(list)
    for event in page.events:
        if isinstance(event, RunEvent):
            trails[event.run_id].append(event.seq)
    # A key that an ended run gave up may be another's by now.
    runs = sorted(page.runs, key=lambda run: run.ended_at is None)
    compacted = [event.seq for event in page.events if isinstance(event, LogCompacted)]
    came = page.events[-1].seq if page.events else page.after
    answer = await db.write(
        _RESTORE,
        page.after,
        encode([(run.id, raw(write_run(run, ())), raw(_numbers(trails[run.id]))) for run in runs]),
        encode([(row.id, raw(write_schedule(row)), page.touched.get(row.id, 0)) for row in page.schedules]),
        encode(
            [
                (e.seq, raw(write_event(e)), e.run_id or "", e.schedule_id or "", int(e.n is None), e.at)
                for e in page.events
            ]
        ),
        encode(
            [
                (span.schedule_id, span.through, raw(write_span(span, came + place)))
                for place, span in enumerate(page.spans)
            ]
        ),
        encode([(body.id, body.data) for body in page.bodies]),
        encode([astuple(gate) for gate in page.gates]),
        encode([(row.schedule_id or "", _field(row.day, row.outcome), row.count) for row in page.tallies]),
        compacted[-1] if compacted else "",
    )
    return bool(answer)


async def exists(settings: RedisSettings) -> bool:
    """True when something was ever written under this prefix; looking creates nothing."""
    db = Database(settings, None)
    await db.open()
    try:
        (found,) = await db.read(("EXISTS", f"{db.marker}seq"))
        return bool(found)
    finally:
        await db.close()


def _numbers(trail: list[int]) -> bytes:
    return b"".join(seq.to_bytes(_SEQ_BYTES, "big") for seq in trail)


def _field(day: Ms, outcome: str) -> str:
    return f"{day}\0{outcome}"
