"""Rows in and out: msgpack as the scripts read and write it; what they do not read they pass on as it is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr, replace

from mainspring.model.events import Event, decode_event, encode_data
from mainspring.model.run import CLAIMABLE, ENDED, Run, State
from mainspring.model.schedule import Schedule, Span

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

_STR_32 = b"\xdb"
_length = struct.Struct(">I")
_instant = struct.Struct(">q")


def raw(data: bytes) -> Raw:
    """Bytes as a script gets them: cmsgpack knows strings, and no binary."""
    return Raw(_STR_32 + _length.pack(len(data)) + data)


# ── runs ────────────────────────────────────────────────────────────────────
# See lua/common.lua: a header, the owner, the numbers of its events, then a `Run` field by field without its state.

_HEADER = struct.Struct(">BBHIIIIHIHIqqqqqq")
#: All but the time of birth, which the server sets.
_FRONT = struct.Struct(">BBHIIIIHIHIqqqqq")
_SEQ_BYTES = 6
#: An instant that is not there.
_NEVER = -1
HAS_GATES, HAS_KEY, HAS_SCHEDULE, HAS_CANCEL = 1, 2, 4, 8
_STATES = tuple(State)
_CODES = {state: code for code, state in enumerate(_STATES)}
_PACKED_STATES = [encode(state) for state in _STATES]
_RUN = b"\xdc" + struct.pack(">H", len(Run.__struct_fields__))
_run = msgspec.msgpack.Decoder(Run).decode


def read_run(row: bytes) -> Run:
    """The run of a row: what stands in the header takes its place."""
    (_, state, crashes, n, epoch, attempt, head, _, _, owner, trail, due, ready, started, ended, lease, created) = (
        _HEADER.unpack_from(row)
    )
    head_at = _HEADER.size + owner + trail
    rest_at = head_at + head
    run = _run(b"".join((_RUN, row[head_at:rest_at], _PACKED_STATES[state], row[rest_at:])))
    force_setattr(run, "n", n)
    force_setattr(run, "due_at", due)
    force_setattr(run, "ready_at", ready)
    force_setattr(run, "created_at", created)
    if crashes:
        force_setattr(run, "crashes", crashes)
    if epoch or attempt:
        force_setattr(run, "epoch", epoch)
        force_setattr(run, "attempt", attempt)
    if started != _NEVER:
        force_setattr(run, "started_at", started)
    if ended != _NEVER:
        force_setattr(run, "ended_at", ended)
    if lease != _NEVER:
        force_setattr(run, "lease_until", lease)
    if owner:
        force_setattr(run, "owner", row[_HEADER.size : _HEADER.size + owner].decode())
    return run


def read_trail(row: bytes) -> list[int]:
    """The numbers in the log of a run's moves, in order."""
    parts = _HEADER.unpack_from(row)
    start = _HEADER.size + parts[9]
    return [int.from_bytes(row[i : i + _SEQ_BYTES], "big") for i in range(start, start + parts[10], _SEQ_BYTES)]


def write_run(run: Run, trail: Sequence[int]) -> bytes:
    """A whole row, as it is: for a copy of another store."""
    front, owner, back = run_parts(run, len(trail), run.n)
    numbers = b"".join(seq.to_bytes(_SEQ_BYTES, "big") for seq in trail)
    return front + _instant.pack(run.created_at) + owner + numbers + back


def queue_name(run: Run) -> str:
    """Where a claimable run waits."""
    return f"{run.lane}\0{int(run.priority)}\0{run.task}"


def run_parts(run: Run, events: int, n: int) -> tuple[bytes, bytes, bytes]:
    """A row in three parts: its birth and its owner come after the first, its trail after the second."""
    ident = encode((run.id, run.ns, run.schedule_id))[1:]
    middle = encode(
        (
            run.task,
            run.origin,
            run.fire_time,
            run.fire_key,
            run.revision,
            run.catch_up,
            run.lane,
            run.priority,
            run.gates,
            run.unique_key,
        )
    )[1:]
    last = encode((run.body, run.options))[1:]
    flags = HAS_GATES if run.gates else 0
    if run.unique_key is not None:
        flags |= HAS_KEY
    if run.schedule_id is not None:
        flags |= HAS_SCHEDULE
    if run.cancel is not None:
        flags |= HAS_CANCEL
    owner = b"" if run.owner is None else run.owner.encode()
    body_at = len(ident) + len(middle)
    front = _FRONT.pack(
        flags,
        _CODES[run.state],
        run.crashes,
        n,
        run.epoch,
        run.attempt,
        body_at + len(last),
        len(ident),
        body_at,
        len(owner),
        events * _SEQ_BYTES,
        run.due_at,
        run.ready_at,
        _NEVER if run.started_at is None else run.started_at,
        _NEVER if run.ended_at is None else run.ended_at,
        _NEVER if run.lease_until is None else run.lease_until,
    )
    return front, owner, b"".join((ident, middle, last, run_rest(run)))


def run_rest(run: Run) -> bytes:
    """What scripts seldom read, behind the state; what is in the header leaves its place empty."""
    rest = encode(
        (
            0,
            0,
            0,
            0,
            0,
            run.failures,
            0,
            run.cancel,
            run.reason,
            run.result,
            run.error,
            run.began_at,
            run.ms,
            0,
            None,
            None,
            run.dead,
            None,
            None,
            run.parked_on,
            run.progress,
        )
    )
    return rest[3:]


def pack_birth(run: Run, moves: int) -> tuple[Any, ...]:
    """A run that does not exist yet, as apply.lua inserts it; every move of it is an event that comes along."""
    front, owner, back = run_parts(run, moves, moves)
    waits = run.state in CLAIMABLE and run.parked_on is None and run.unique_key is None and run.schedule_id is None
    return (
        run.id,
        raw(front),
        raw(owner),
        raw(back),
        moves,
        run.state in ENDED,
        run.ns,
        run.schedule_id,
        run.fire_key,
        run.body,
        queue_name(run) if waits else None,
        run.ready_at,
    )


# ── schedules ───────────────────────────────────────────────────────────────


class _ScheduleRow(Struct, array_like=True, gc=False):
    n: int
    revision: int
    cursor: int
    created: int
    updated: int
    state: str
    next_at: int | None
    ns: str
    name: str
    app: str
    body: str | None
    schedule: Schedule


_ARRAY_12 = b"\x9c"
_schedule_row = msgspec.msgpack.Decoder(_ScheduleRow).decode


def read_schedule(row: bytes) -> Schedule:
    """The schedule of a row; what the store keeps to itself stands in front."""
    found = _schedule_row(_ARRAY_12 + row)
    return replace(found.schedule, n=found.n, created_at=found.created, updated_at=found.updated)


def pack_schedule(schedule: Schedule, moves: int) -> tuple[Any, ...]:
    """A schedule's new values, as apply.lua writes them."""
    return (
        schedule.revision,
        schedule.cursor,
        schedule.state,
        schedule.next_at,
        schedule.ns,
        schedule.name,
        schedule.app,
        schedule.spec.body,
        raw(encode(schedule)),
        moves,
        schedule.id,
    )


def write_schedule(schedule: Schedule) -> bytes:
    """A whole row, as it is: for a copy of another store."""
    front = (
        schedule.n,
        schedule.revision,
        schedule.cursor,
        schedule.created_at,
        schedule.updated_at,
        schedule.state,
        schedule.next_at,
        schedule.ns,
        schedule.name,
        schedule.app,
        schedule.spec.body,
    )
    return encode(front)[1:] + encode(schedule)


# ── events ──────────────────────────────────────────────────────────────────
# at, n, then what the script passes on as it is.


class _EventRow(Struct, array_like=True, gc=False):
    at: int
    n: int | None
    change: str | None
    type: str
    v: int
    actor: str | None
    run_id: str | None
    ns: str
    schedule_id: str | None
    epoch: int | None
    attempt: int | None
    owner: str | None
    data: str | None


_ARRAY_13 = b"\x9d"
_event_row = msgspec.msgpack.Decoder(_EventRow).decode
_COLUMNS = ("at", "n", "v", "actor", "change", "run_id", "ns", "schedule_id", "epoch", "attempt", "owner")


def event_rest(event: Event, change: str | None) -> bytes:
    """An event as it is stored, behind its time and number."""
    return encode(
        (
            change,
            type(event).__name__,
            event.v,
            event.actor,
            event.run_id,
            event.ns,
            event.schedule_id,
            event.epoch,
            event.attempt,
            event.owner,
            encode_data(event),
        )
    )[1:]


def write_event(event: Event) -> bytes:
    """A whole event, as it is: for a copy of another store."""
    return encode((event.at, event.n))[1:] + event_rest(event, event.change)


def read_event(seq: int, row: bytes) -> Event:
    """The event that is stored under this number."""
    found = _event_row(_ARRAY_13 + row)
    columns: dict[str, Any] = {"seq": seq}
    for name in _COLUMNS:
        value = getattr(found, name)
        if value is not None:
            columns[name] = value
    return decode_event(found.type, columns, found.data)


# ── spans ───────────────────────────────────────────────────────────────────
# A member of `span:<schedule>`, scored by its end: its beginning, where in the log it came, the span.

_AFTER, _CAME = 17, 16


def pack_span(span: Span) -> tuple[str, int, Raw, Raw]:
    """A span, as apply.lua adds it."""
    return (
        span.schedule_id,
        span.through,
        raw(f"{span.after:+017d}".encode()),
        raw(encode(msgspec.structs.astuple(span))),
    )


def write_span(span: Span, came: int) -> bytes:
    """A whole member, for a copy of another store."""
    return f"{span.after:+017d}{came:016d}".encode() + encode(msgspec.structs.astuple(span))


def read_span(member: bytes) -> Span:
    """The span of a member."""
    return Span(*_decode(member[_AFTER + _CAME :]))
