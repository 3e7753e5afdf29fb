"""Retention: which rows a purge removes, and what it writes in their place."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.model.events import (
    Event,
    FiresElided,
    InstanceJoined,
    LogCompacted,
    ScheduleCreated,
    ScheduleFinished,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.instant import DAY_MS
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.run import ENDED, Run, State
from mainspring.model.schedule import Schedule, ScheduleSpec, Span
from mainspring.model.trigger import EverySpec
from mainspring.rules.retention import (
    Removable,
    RemovedRun,
    RemovedSpan,
    compaction_note,
    count_tallies,
    is_keyvalue_expired,
    is_lease_removable,
    is_run_removable,
    is_schedule_removable,
    is_span_removable,
    removable_notes,
    schedules_to_compact,
    snapshot_schedules,
)

LIMIT = 1_000
POLICY = Retention(ended_before=LIMIT, lease_prefix="execution:", leases_before=LIMIT)
SPEC = ScheduleSpec(trigger=EverySpec(1_000), task="t")
schedule_ids = st.sampled_from(["a", "b", "c"])
instants = st.integers(0, 5 * DAY_MS)
removed_runs = st.builds(
    RemovedRun,
    st.none() | schedule_ids,
    st.sampled_from(["fire", "enqueue", "trigger"]),
    instants,
    st.sampled_from(sorted(ENDED)),
)
removed_spans = st.builds(
    RemovedSpan, schedule_ids, instants, st.sampled_from(["paused", "missed"]), st.integers(1, 1_000)
)


def schedule(schedule_id: str = "a", **values: object) -> Schedule:
    row = Schedule(id=schedule_id, ns="default", name=f"name {schedule_id}", spec=SPEC, anchor=0, cursor=0)
    return replace(row, **values)


# ── which rows may be removed ───────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ended_at", "dead", "keep_dead", "removable"),
    [
        (None, False, False, False),
        (LIMIT, False, False, False),
        (LIMIT - 1, False, True, True),
        (LIMIT - 1, True, True, False),
        (LIMIT - 1, True, False, True),
    ],
)
def test_a_run_is_removable_when_it_ended_before_the_limit_and_is_no_dead_run_to_keep(
    ended_at: int | None, dead: bool, keep_dead: bool, removable: bool
) -> None:
    run = Run(id="r", task="t", state=State.FAILED if ended_at else State.WAITING, ended_at=ended_at, dead=dead)
    assert is_run_removable(run, replace(POLICY, keep_dead=keep_dead)) is removable


@pytest.mark.parametrize(("through", "removable"), [(LIMIT - 1, True), (LIMIT, False)])
def test_a_span_is_removable_when_it_ended_before_the_limit(through: int, removable: bool) -> None:
    span = Span(schedule_id="a", revision=1, after=0, through=through, count=3, reason="paused")
    assert is_span_removable(span, POLICY) is removable


@pytest.mark.parametrize(
    ("state", "updated_at", "has_runs", "has_spans", "removable"),
    [
        ("deleted", LIMIT - 1, False, False, True),
        ("deleted", LIMIT, False, False, False),
        ("deleted", LIMIT - 1, True, False, False),
        ("deleted", LIMIT - 1, False, True, False),
        ("finished", LIMIT - 1, False, False, False),
    ],
)
def test_a_schedule_is_removable_when_it_was_deleted_and_nothing_of_it_is_left(
    state: str, updated_at: int, has_runs: bool, has_spans: bool, removable: bool
) -> None:
    row = schedule(state=state, updated_at=updated_at)
    assert is_schedule_removable(row, POLICY, has_runs=has_runs, has_spans=has_spans) is removable


@pytest.mark.parametrize(
    ("name", "renewed_at", "live", "expires_at", "removable"),
    [
        ("execution:1", LIMIT - 1, False, 99_999, True),
        ("execution:1", LIMIT - 1, True, 5_000, True),
        ("execution:1", LIMIT - 1, True, 5_001, False),
        ("execution:1", LIMIT, False, 0, False),
        ("leader", LIMIT - 1, False, 0, False),
    ],
)
def test_a_lease_is_removable_when_it_ended_has_the_prefix_and_was_not_renewed_since_the_limit(
    name: str, renewed_at: int, live: bool, expires_at: int, removable: bool
) -> None:
    lease = Lease(name, "w", 1, expires_at, renewed_at, None, live)
    assert is_lease_removable(lease, POLICY, lease_now=5_000) is removable


@pytest.mark.parametrize(("expires_at", "expired"), [(None, False), (5_000, True), (5_001, False)])
def test_an_entry_expires_at_its_instant(expires_at: int | None, expired: bool) -> None:
    assert is_keyvalue_expired(KeyValue(kind="k", id="1", data="", expires_at=expires_at), 5_000) is expired


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2 * LIMIT))))
def test_notes_before_the_limit_go_except_the_newest_compaction(made: list[tuple[bool, int]]) -> None:
    compacted = compaction_note([], runs=0, tallies=0)
    notes: list[Event] = [
        replace(compacted if is_compaction else InstanceJoined(instance="i"), seq=seq, at=at)
        for seq, (is_compaction, at) in enumerate(made, 1)
    ]
    found = removable_notes(notes, POLICY)
    newest = [note for note in notes if isinstance(note, LogCompacted)][-1:]
    assert found == [note for note in notes if note.at < LIMIT and note not in newest]


@given(st.lists(st.lists(st.integers(), max_size=9), min_size=5, max_size=5), st.integers(0, 9))
def test_at_most_the_limit_of_each_kind_is_taken(rows: list[list[int]], limit: int) -> None:
    found = Removable(*rows)
    taken = found.first(limit)
    assert [list(some) for some in taken] == [some[:limit] for some in rows]
    assert found.exceeds(limit) == (taken != found)


def test_the_report_counts_rows_by_kind() -> None:
    rows = Removable(runs=[1], notes=[1, 2], schedules=[1, 2, 3], leases=[], kept=[1])
    assert rows.report(events=7, spans=8, bodies=9, more=True) == Purged(
        runs=1, events=7, spans=8, bodies=9, more=True, notes=2, schedules=3, leases=0, kept=1
    )


# ── what is written in their place ──────────────────────────────────────────


def test_tallies_are_by_schedule_day_and_outcome() -> None:
    runs = [
        RemovedRun("a", "fire", 0, "succeeded"),
        RemovedRun("a", "fire", DAY_MS - 1, "succeeded"),
        RemovedRun("a", "fire", DAY_MS, "succeeded"),
        RemovedRun("a", "trigger", 0, "succeeded"),
        RemovedRun(None, "enqueue", 0, "failed"),
    ]
    spans = [RemovedSpan("a", DAY_MS - 1, "paused", 30), RemovedSpan("a", 5, "paused", 12)]
    assert count_tallies(runs, spans) == {
        ("a", 0, "fire/succeeded"): 2,
        ("a", 1, "fire/succeeded"): 1,
        ("a", 0, "adhoc/succeeded"): 1,
        (None, 0, "adhoc/failed"): 1,
        ("a", 0, "span/paused"): 42,
    }


def test_a_run_counts_at_its_fire_time_or_at_its_creation() -> None:
    run = Run(id="r", task="t", schedule_id="a", origin="fire", state=State.LOST, fire_time=DAY_MS, created_at=5)
    assert RemovedRun.of(run) == ("a", "fire", DAY_MS, State.LOST)
    assert RemovedRun.of(replace(run, fire_time=None)) == ("a", "fire", 5, State.LOST)
    assert count_tallies([RemovedRun.of(run)], []) == {("a", 1, "fire/lost"): 1}


@given(st.lists(removed_runs), st.lists(removed_spans))
def test_no_fire_is_lost_in_the_tallies(runs: list[RemovedRun], spans: list[RemovedSpan]) -> None:
    tallies = count_tallies(runs, spans)
    assert sum(tallies.values()) == len(runs) + sum(span.fires for span in spans)
    of_schedule_a = sum(count for (schedule_id, _, _), count in tallies.items() if schedule_id == "a")
    fires = sum(span.fires for span in spans if span.schedule_id == "a")
    assert of_schedule_a == sum(run.schedule_id == "a" for run in runs) + fires


@given(st.lists(removed_runs), st.lists(removed_runs), st.lists(removed_spans))
def test_purges_in_two_steps_count_as_one(
    first: list[RemovedRun], second: list[RemovedRun], spans: list[RemovedSpan]
) -> None:
    assert count_tallies(first, spans) + count_tallies(second, []) == count_tallies([*first, *second], spans)


@given(st.lists(removed_runs), st.lists(removed_spans))
def test_every_schedule_that_loses_something_is_compacted_once(
    runs: list[RemovedRun], spans: list[RemovedSpan]
) -> None:
    ids = schedules_to_compact(runs, spans)
    assert ids == sorted({row.schedule_id for row in (*runs, *spans) if row.schedule_id is not None})


def created(schedule_id: str, seq: int) -> ScheduleCreated:
    return ScheduleCreated(schedule_id=schedule_id, seq=seq, n=1, name="n", spec=SPEC, anchor=0, cursor=0)


def test_a_snapshot_holds_the_row_and_every_definition_of_the_stream() -> None:
    one, other = schedule("a", n=3, revision=2), schedule("b", n=1)
    updated = ScheduleUpdated(schedule_id="a", seq=4, n=2, revision=2, spec=SPEC, anchor=0, cursor=7)
    finished = ScheduleFinished(schedule_id="a", seq=6, n=3, cursor=9, reason="end")
    streams: list[Event] = [created("a", 1), created("b", 2), updated, finished]
    snapshots = snapshot_schedules([one, other], streams)
    assert [(one.schedule_id, one.ns, one.state) for one in snapshots] == [
        ("a", "default", one),
        ("b", "default", other),
    ]
    assert [definition.revision for definition in snapshots[0].definitions] == [1, 2]
    assert snapshots[0].definitions[-1].until == 9
    again = snapshot_schedules([one], [replace(snapshots[0], seq=7, n=3)])
    assert again == snapshots[:1], "a snapshot of a snapshot changes nothing"


def test_a_schedule_without_a_stream_gets_a_snapshot_without_definitions() -> None:
    elided = FiresElided(schedule_id="b", revision=1, after=0, through=5, count=1, reason="paused")
    (snapshot,) = snapshot_schedules([schedule("a")], [elided])
    assert isinstance(snapshot, ScheduleSnapshot)
    assert snapshot.definitions == ()


@given(st.sets(st.integers(1, 10**9)), st.randoms(use_true_random=False))
def test_the_note_does_not_depend_on_the_order_of_removal(numbers: set[int], order: object) -> None:
    shuffled = list(numbers)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    note = compaction_note(shuffled, runs=2, tallies=3)
    assert note == compaction_note(sorted(numbers), runs=2, tallies=3)
    assert (note.through, note.events, note.streams, note.tallies) == (max(numbers, default=0), len(numbers), 2, 3)
    text = ",".join(str(number) for number in sorted(numbers))
    assert note.digest == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
