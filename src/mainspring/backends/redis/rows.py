"""Encode and decode rows: runs, schedules, events and spans, in the form in which the Lua scripts read and write them.

In names and comments, the *header* is the first part of a run's row, with the fields that scripts change often. The
*trail* is another part: the numbers of the run's events in the log. lua/common.lua describes all parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr, replace

from mainspring.model.event_codec import decode_event, encode_data
from mainspring.model.events import Event
from mainspring.model.run import CLAIMABLE, ENDED, Run, State
from mainspring.model.schedule import Schedule, Span

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

_STR_32 = b"\xdb"
_LENGTH = struct.Struct(">I")
_INSTANT = struct.Struct(">q")


def pack_bytes(data: bytes) -> Raw:
    """Return bytes encoded as a MessagePack string, for a script.

    Why not as MessagePack's binary type: Redis's cmsgpack does not know it.
    """
    return Raw(_STR_32 + _LENGTH.pack(len(data)) + data)


# ── runs ────────────────────────────────────────────────────────────────────
# A row: header, owner, trail (log numbers of the run's events), then a `Run` field by field without its state.
# lua/common.lua decodes the same bytes.

#: The header of a run's row: flags, state, crashes, n, epoch, attempt; four lengths and an offset of later parts; due,
#: ready, started, ended, end of the lease, created.
_RUN_HEADER = struct.Struct(">BBHIIIIHIHIqqqqqq")
#: The header without created_at, its last field, which the server sets.
_RUN_HEADER_WITHOUT_CREATED = struct.Struct(">BBHIIIIHIHIqqqqq")
_SEQ_BYTES = 6
#: In the header, this number stands for an instant that is None.
_PACKED_NONE = -1
#: Flags in the header of a run's row: the run has gates, a unique key, a schedule, a cancel request.
HAS_GATES, HAS_KEY, HAS_SCHEDULE, HAS_CANCEL = 1, 2, 4, 8
_STATES = tuple(State)
_STATE_CODES = {state: code for code, state in enumerate(_STATES)}
_PACKED_STATES = [encode(state) for state in _STATES]
_RUN_ARRAY = b"\xdc" + struct.pack(">H", len(Run.__struct_fields__))
_decode_run = msgspec.msgpack.Decoder(Run).decode


def read_run(row: bytes) -> Run:
    """Return the run that a stored row encodes.

    Fields that are in the header of the row are taken from there; the encoded `Run` has placeholders for them.
    """
    (_, state, crashes, n, epoch, attempt, head, _, _, owner, trail, due, ready, started, ended, lease, created) = (
        _RUN_HEADER.unpack_from(row)
    )
    head_at = _RUN_HEADER.size + owner + trail
    rest_at = head_at + head
    run = _decode_run(b"".join((_RUN_ARRAY, row[head_at:rest_at], _PACKED_STATES[state], row[rest_at:])))
    force_setattr(run, "n", n)
    force_setattr(run, "due_at", due)
    force_setattr(run, "ready_at", ready)
    force_setattr(run, "created_at", created)
    if crashes:
        force_setattr(run, "crashes", crashes)
    if epoch or attempt:
        force_setattr(run, "epoch", epoch)
        force_setattr(run, "attempt", attempt)
    if started != _PACKED_NONE:
        force_setattr(run, "started_at", started)
    if ended != _PACKED_NONE:
        force_setattr(run, "ended_at", ended)
    if lease != _PACKED_NONE:
        force_setattr(run, "lease_until", lease)
    if owner:
        force_setattr(run, "owner", row[_RUN_HEADER.size : _RUN_HEADER.size + owner].decode())
    return run


def encode_run_row(run: Run, trail: Sequence[int]) -> bytes:
    """Return the complete row of a run from another store, with the `created_at` and `n` that the run has there.

    `trail`: the log numbers of the run's events.
    """
    front, owner, back = encode_run_parts(run, len(trail), run.n)
    return front + _INSTANT.pack(run.created_at) + owner + encode_trail(trail) + back


def encode_trail(seqs: Sequence[int]) -> bytes:
    """Return the trail of a run's row: the log numbers of the run's events, 6 bytes each."""
    return b"".join(seq.to_bytes(_SEQ_BYTES, "big") for seq in seqs)


def queue_name(run: Run) -> str:
    """Return the name under which Redis stores the queue of a claimable run: lane NUL priority NUL task."""
    return f"{run.lane}\0{int(run.priority)}\0{run.task}"


def encode_run_parts(run: Run, events: int, n: int) -> tuple[bytes, bytes, bytes]:
    """Return three parts of a run's row: header without created_at, owner, and the other fields without the state.

    The scripts insert created_at after the first part, and the trail after the second part. `events`: the number of
    events that the trail will list; `n`: the number of the run's last event.
    """
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
    front = _RUN_HEADER_WITHOUT_CREATED.pack(
        flags,
        _STATE_CODES[run.state],
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
        _PACKED_NONE if run.started_at is None else run.started_at,
        _PACKED_NONE if run.ended_at is None else run.ended_at,
        _PACKED_NONE if run.lease_until is None else run.lease_until,
    )
    return front, owner, b"".join((ident, middle, last, encode_run_rest(run)))


def encode_run_rest(run: Run) -> bytes:
    """Return the encoded fields of a run that follow its state, which scripts seldom read.

    A field that is in the header of the run's row is replaced by a placeholder, 0 or None.
    """
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


def pack_new_run(run: Run, moves: int) -> tuple[Any, ...]:
    """Return the values of a new run, in the order in which lua/apply.lua reads them.

    `moves`: the number of events of this run in the change that inserts it.
    """
    front, owner, back = encode_run_parts(run, moves, moves)
    waits = run.state in CLAIMABLE and run.parked_on is None and run.unique_key is None and run.schedule_id is None
    return (
        run.id,
        pack_bytes(front),
        pack_bytes(owner),
        pack_bytes(back),
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
    """The row of a schedule: 11 columns that scripts read and update, then the encoded schedule."""

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


_ARRAY_OF_12 = b"\x9c"
_decode_schedule_row = msgspec.msgpack.Decoder(_ScheduleRow).decode


def read_schedule(row: bytes) -> Schedule:
    """Return the schedule in a stored row: columns that scripts update, then the encoded schedule.

    `n`, `created_at` and `updated_at` are taken from the columns, because scripts do not change the encoded schedule.
    """
    found = _decode_schedule_row(_ARRAY_OF_12 + row)
    return replace(found.schedule, n=found.n, created_at=found.created, updated_at=found.updated)


def pack_schedule(schedule: Schedule, moves: int) -> tuple[Any, ...]:
    """Return a schedule's new values, in the order in which lua/apply.lua reads them.

    `moves`: the number of events of this schedule in the change.
    """
    return (
        schedule.revision,
        schedule.cursor,
        schedule.state,
        schedule.next_at,
        schedule.ns,
        schedule.name,
        schedule.app,
        schedule.spec.body,
        pack_bytes(encode(schedule)),
        moves,
        schedule.id,
    )


def encode_schedule_row(schedule: Schedule) -> bytes:
    """Return the complete row of a schedule from another store, with the times and `n` that the schedule has there."""
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
# A row: at and n, which the script that appends the event writes, then all other fields, which this file encodes.


class _EventRow(Struct, array_like=True, gc=False):
    """The row of an event: its columns, and in `data` the fields of its class as JSON text; `type` names the class."""

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


_ARRAY_OF_13 = b"\x9d"
_decode_event_row = msgspec.msgpack.Decoder(_EventRow).decode
_EVENT_COLUMNS = ("at", "n", "v", "actor", "change", "run_id", "ns", "schedule_id", "epoch", "attempt", "owner")


def encode_event_rest(event: Event, change: str | None) -> bytes:
    """Return the encoded row of an event without `at` and `n`, its first two fields, which scripts add.

    `change`: the id of the change that appends the event; None if no change does.
    """
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


def encode_event_row(event: Event) -> bytes:
    """Return the complete row of an event from another store, with the `at` and `n` that the event has there."""
    return encode((event.at, event.n))[1:] + encode_event_rest(event, event.change)


def read_event(seq: int, row: bytes) -> Event:
    """Return the event that a stored row encodes; `seq`: the event's number in the log."""
    found = _decode_event_row(_ARRAY_OF_13 + row)
    columns: dict[str, Any] = {"seq": seq}
    for name in _EVENT_COLUMNS:
        value = getattr(found, name)
        if value is not None:
            columns[name] = value
    return decode_event(found.type, columns, found.data)


# ── spans ───────────────────────────────────────────────────────────────────
# A span is a member of the sorted set `span:<schedule>`, and its score is the end of the span. The member has three
# parts: the span's beginning, the number of the log's last event when the span was written, the encoded span.

_AFTER_BYTES, _LOG_POSITION_BYTES = 17, 16


def pack_span(span: Span) -> tuple[str, int, Raw, Raw]:
    """Return a span as lua/apply.lua adds it to the sorted set of its schedule's spans.

    That is: the schedule's id, the score (the end of the span), the first part and the last part of the member. Between
    these parts the script writes the number of the log's last event, which makes the member unique.
    """
    return (
        span.schedule_id,
        span.through,
        pack_bytes(f"{span.after:+017d}".encode()),
        pack_bytes(encode(msgspec.structs.astuple(span))),
    )


def encode_span_row(span: Span, position: int) -> bytes:
    """Return the complete member of the sorted set of its schedule's spans for a span from another store.

    `position`: a number that makes the member unique, and orders spans that begin at the same time.
    """
    return f"{span.after:+017d}{position:016d}".encode() + encode(msgspec.structs.astuple(span))


def read_span(member: bytes) -> Span:
    """Return the span that a member of the sorted set of a schedule's spans encodes."""
    return Span(*_decode(member[_AFTER_BYTES + _LOG_POSITION_BYTES :]))
