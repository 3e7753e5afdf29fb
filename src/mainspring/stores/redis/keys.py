"""The names of the keys, behind the prefix that all of them share; lua/common.lua writes the same. See docs/redis.md.

A name that ends in a colon is followed by what it is about.
"""

from __future__ import annotations

from typing import Final

# rows
RUN: Final = "run"  # hash: id → row
SCHEDULE: Final = "schedule"  # hash: id → row
BODY: Final = "body"  # hash: id → payload
USES: Final = "uses"  # hash: payload's id → how many runs and schedules name it
GATE: Final = "gate"  # hash: name → max, held, closed_until
SPAN: Final = "span:"  # sorted set of a schedule: its spans by `through`
TALLY: Final = "tally:"  # hash of a schedule, or of nobody: day NUL outcome → count
TALLIED: Final = "tallied"  # set: schedules that have tallies

# the log
SEQ: Final = "seq"  # the last event's number
LOG: Final = "log:"  # hash of a block: number → event
BLOCK: Final = 256  # numbers a block holds
BLOCKS: Final = "blocks"  # sorted set: blocks that hold something, by their number
MOVES: Final = "moves:"  # list of a schedule: the numbers of its own moves
NOTES: Final = "notes"  # sorted set: numbers of notes, by time
NOTED: Final = "noted"  # sorted set, by name: run NUL number (16 digits) of a note about it
COMPACTED: Final = "compacted"  # the number of the newest word of a compaction
CHANGES: Final = "changes"  # sorted set: ids of changes that bring neither guard nor run, by time, for an hour

# runs, found
NAMESPACES: Final = "namespaces"  # set: those that have runs
RUNS: Final = "runs:"  # sorted set of a namespace, by id
OF: Final = "of:"  # sorted set of a schedule, by id
FIRE: Final = "fire:"  # hash of a schedule: fire key → run
OPEN: Final = "open:"  # sorted set of a schedule: its open runs, 1 those that run, 0 the others
UNIQUE: Final = "unique"  # hash: namespace NUL unique key → the open run that has it
ENDED: Final = "ended"  # sorted set, by ended_at
UNHAPPY: Final = "unhappy"  # sorted set, by id: ended, and not well
DEAD: Final = "dead"  # sorted set, by id: dead letters
BLOCKED: Final = "blocked"  # sorted set, by id

# runs, on their way
QUEUES: Final = "queues"  # set: lane NUL priority NUL task of those that hold something
QUEUE: Final = "queue:"  # sorted set: claimable runs by ready_at
OWNERS: Final = "owners"  # set: those that hold a run
OWN: Final = "own:"  # sorted set of an owner: runs by when to look at their lease: its end, or that of a hold
PARKED: Final = "parked"  # set: gates that runs wait at
PARK: Final = "park:"  # sorted set of a gate: runs by priority · 2^50 + ready_at

# schedules, found
SCHEDULES: Final = "schedules"  # sorted set, by id: all of them, the deleted too
NAMES: Final = "names"  # hash: namespace NUL name → id, of those that are not deleted
DUE: Final = "due"  # sorted set: those that plan, by next_at, or the end of a hold
HELD: Final = "held"  # sorted set: those that are held, by the end of the hold
UNPLANNED: Final = "unplanned"  # sorted set, by id: active, and without a next time
GONE: Final = "gone"  # sorted set: deleted schedules, by when that was
APP: Final = "app:"  # sorted set of an app, by id
TOUCHED: Final = "touched"  # hash: schedule → touch mark
SPANNED: Final = "spanned"  # set: schedules that have spans
GATES: Final = "gates"  # sorted set, by name

# beside the log
LEASE_ROWS: Final = "lease:rows"  # hash: name → owner, epoch, expires_at, renewed_at, data, live
LEASE_NAMES: Final = "lease:names"  # sorted set, by name
LEASE_RENEWED: Final = "lease:renewed"  # sorted set, by renewed_at
KEPT_ROWS: Final = "kept:rows"  # hash: kind NUL id → data, created_at, expires_at
KEPT_NAMES: Final = "kept:names"  # sorted set, by kind NUL id
KEPT_ENDS: Final = "kept:ends"  # sorted set: those that expire, by when
HINTS: Final = "hints"  # the channel on which instances tell each other that something changed
