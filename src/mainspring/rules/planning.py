"""Planning: what a schedule owes at an instant, decided from its definition, cursor and open runs alone.

Every fire in (cursor, now] ends up in exactly one piece, in order of time: a run, a run skipped at birth,
or a span that says why nothing will run. Costs days, not fires.
"""

from __future__ import annotations

import bisect
import hashlib

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.events import FiresElided, RunScheduled, RunSkipped, ScheduleFinished
from mainspring.model.ids import fire_id
from mainspring.model.instant import Ms
from mainspring.model.schedule import Definition, Schedule, ScheduleSpec
from mainspring.model.trigger import EverySpec
from mainspring.rules.draft import Draft
from mainspring.rules.lanes import lane_of, schedule_gate
from mainspring.rules.triggers import Every, Trigger, compile_trigger
from mainspring.rules.windows import is_open, next_opening

#: A change holds at most so many runs; the rest follows in the next one.
MAX_RUNS_PER_CHANGE = 200


class OpenRuns(Struct, frozen=True, gc=False):
    """What is open of the schedule: how many, how many of them are not running, the oldest."""

    count: int = 0
    waiting: int = 0
    oldest: str | None = None


class _Fire(Struct, frozen=True, gc=False):
    at: Ms
    catch_up: bool = False
    replay: bool = False
    coalesced: int = 0


class _Gone(Struct, frozen=True, gc=False):
    after: Ms
    through: Ms
    count: int
    reason: str


def trigger_of(spec: ScheduleSpec, anchor: Ms) -> Trigger:
    """The compiled trigger; the anchor matters to intervals only."""
    trigger = spec.trigger
    if isinstance(trigger, EverySpec):  # made sooner than looked up
        return Every.from_spec(trigger if trigger.anchor is not None else replace(trigger, anchor=anchor))
    return compile_trigger(trigger)


def is_fixed_delay(spec: ScheduleSpec) -> bool:
    """True when the next fire depends on the end of the last run."""
    return isinstance(spec.trigger, EverySpec) and spec.trigger.fixed_delay


def bounds(spec: ScheduleSpec, after: Ms, through: Ms) -> tuple[Ms, Ms]:
    """(after, through] cut to the schedule's start and end."""
    low = after if spec.start is None else max(after, spec.start - 1)
    high = through if spec.end is None else min(through, spec.end)
    return low, max(low, high)


def planned_count(definition: Definition, through: Ms) -> int:
    """Fires a definition owes after it came into force, through an instant; never looks at rows.

    Fires that a clock change dropped are counted: the ledger has a span for each.
    """
    return owed(definition.spec, definition.anchor, definition.since, through)


def owed(spec: ScheduleSpec, anchor: Ms, after: Ms, through: Ms) -> int:
    """Fires in (after, through], those that a clock change dropped included."""
    low, high = bounds(spec, after, through)
    trigger = trigger_of(spec, anchor)
    return trigger.count_ms(low, high) + len(trigger.dropped_ms(low, high))


def next_fire(spec: ScheduleSpec, anchor: Ms, after: Ms) -> Ms | None:
    """The first fire after an instant, inside start and end."""
    low = after if spec.start is None else max(after, spec.start - 1)
    found = trigger_of(spec, anchor).next_ms(low)
    return None if found is None or (spec.end is not None and found > spec.end) else found


def next_look(spec: ScheduleSpec, anchor: Ms, after: Ms) -> Ms | None:
    """When the planner must look again: the next fire, or the first that may fall into the window.

    None when nothing is owed any more: where no fire is left before the end, a dropped one may be.
    """
    fire = next_fire(spec, anchor, after)
    if fire is None and spec.end is not None:
        dropped = trigger_of(spec, anchor).dropped_ms(*bounds(spec, after, spec.end))
        return dropped[0] if dropped else None
    window = spec.options.window if spec.options else None
    if fire is None or window is None or not _never_inside(spec, fire):
        return fire
    opening = next_opening(window, fire)
    later = next_fire(spec, anchor, opening - spec.grace - 1) if opening is not None else None
    return fire if later is None else later


def settle(schedule: Schedule, opened: OpenRuns, now: Ms, limit: int = MAX_RUNS_PER_CHANGE) -> Draft:
    """Account for every fire due at `now`; `draft.more` when the limit left some for the next change."""
    draft = Draft(schedule)
    if schedule.state != "active":
        return draft
    spec = schedule.spec
    left = None if spec.max_runs is None else max(0, spec.max_runs - schedule.fired)
    fixed = is_fixed_delay(spec)
    single = None if fixed or left == 0 else _single(spec, schedule.anchor, schedule.cursor, now)
    if single is not None:
        fire, following = single
        _emit(draft, [fire], opened, following)
        if following is None or left is not None:
            _finish(draft, left, done=True)
        return draft
    pieces, done = _pieces(schedule, now, limit, left)
    draft.more = not done
    if pieces:
        _emit(draft, pieces, opened, None if fixed else next_look(spec, schedule.anchor, _end(pieces[-1])))
    elif not fixed:
        draft.set(next_at=next_look(spec, schedule.anchor, schedule.cursor))
    _finish(draft, left, done=done)
    return draft


def _pieces(schedule: Schedule, now: Ms, limit: int, left: int | None) -> tuple[list[_Fire | _Gone], bool]:
    """What is due, in order of time, and whether that is all of it."""
    spec = schedule.spec
    if left == 0:
        return [], True
    if is_fixed_delay(spec):
        due = schedule.next_at is not None and schedule.next_at <= bounds(spec, schedule.cursor, now)[1]
        return ([_Fire(schedule.next_at or 0)] if due else []), True
    low, high = bounds(spec, schedule.cursor, now)
    trigger = trigger_of(spec, schedule.anchor)
    total = trigger.count_ms(low, high)
    if left is not None and total >= left:
        high, total = _nth(trigger, low, high, left), left
    shut = _closed_through(spec, schedule.anchor, low, high)
    outside = trigger.count_ms(low, shut) if shut > low else 0
    pieces: list[_Fire | _Gone] = [_Gone(low, shut, outside, "outside_time_window")] if outside else []
    if total > outside:
        pieces += _missed_policy(spec, trigger, shut if outside else low, high, total - outside, now)
    pieces = _window_policy(spec, pieces)
    done = True
    if sum(isinstance(piece, _Fire) for piece in pieces) > limit:
        cut = [i for i, piece in enumerate(pieces) if isinstance(piece, _Fire)][limit]
        pieces, done = pieces[:cut], False
    through = _end(pieces[-1]) if pieces and not done else high
    dropped = [_Gone(at - 1, at, 1, "dst") for at in trigger.dropped_ms(low, through)]
    return sorted([*pieces, *dropped], key=_end), done


def _single(spec: ScheduleSpec, anchor: Ms, cursor: Ms, now: Ms) -> tuple[_Fire, Ms | None] | None:
    """The everyday case, without counting: one fire is due and not missed; and when to look again."""
    if spec.options is not None and spec.options.window is not None:
        return None
    trigger = trigger_of(spec, anchor)
    low, high = (cursor, now) if spec.start is None and spec.end is None else bounds(spec, cursor, now)
    first = trigger.next_ms(low)
    if first is None or first > high or first < now - spec.grace:
        return None
    second = trigger.next_ms(first)
    if (second is not None and second <= high) or trigger.dropped_ms(low, high):
        return None
    return _Fire(first), second if spec.end is None else next_look(spec, anchor, first)


def _end(piece: _Fire | _Gone) -> Ms:
    return piece.at if isinstance(piece, _Fire) else piece.through


def _nth(trigger: Trigger, low: Ms, high: Ms, n: int) -> Ms:
    """The n-th fire after `low`; it exists at or before `high`."""
    if n <= 1_000:
        return trigger.fires_ms(low, high, n)[-1]
    reach = range(low, high + 1)
    return reach[bisect.bisect_left(reach, n, key=lambda at: trigger.count_ms(low, at))]


def _missed_policy(spec: ScheduleSpec, trigger: Trigger, low: Ms, high: Ms, total: int, now: Ms) -> list[_Fire | _Gone]:
    """Split what is due into late-but-fine and missed, and treat the missed as the policy says."""
    edge = min(high, now - spec.grace - 1)  # fires at or before it are missed
    missed = trigger.count_ms(low, edge) if edge > low else 0
    if spec.missed == "skip":
        newest = trigger.last_ms(low, high, 1)
        if newest and newest[0] > edge:
            return [*_gone(low, newest[0] - 1, total - 1), _Fire(newest[0])]
        return _gone(low, high, total)
    pieces: list[_Fire | _Gone] = []
    if missed and spec.missed == "catch_up_once":
        last = trigger.last_ms(low, edge, 1)[0]
        pieces = [*_gone(low, last - 1, missed - 1), _Fire(last, catch_up=True, coalesced=missed - 1)]
    elif missed:
        oldest = max(low, now - spec.replay_age - 1)
        replayed = trigger.last_ms(oldest, edge, spec.replay_max) if edge > oldest else []
        before = replayed[0] - 1 if replayed else edge
        pieces = [*_gone(low, before, missed - len(replayed))]
        pieces += [_Fire(at, catch_up=True, replay=True) for at in replayed]
    on_time = total - missed
    fires = trigger.last_ms(max(low, edge), high, min(on_time, spec.replay_max)) if on_time else []
    if len(fires) < on_time:
        pieces += _gone(max(low, edge), fires[0] - 1 if fires else high, on_time - len(fires))
    return [*pieces, *(_Fire(at) for at in fires)]


def _gone(after: Ms, through: Ms, count: int) -> list[_Fire | _Gone]:
    return [_Gone(after, through, count, "missed")] if count else []


def _window_policy(spec: ScheduleSpec, pieces: list[_Fire | _Gone]) -> list[_Fire | _Gone]:
    """Fires that cannot begin inside the window become spans; those near an opening are left to the worker."""
    if spec.options is None or spec.options.window is None:
        return pieces
    kept: list[_Fire | _Gone] = []
    for piece in pieces:
        if isinstance(piece, _Gone) or piece.catch_up or not _never_inside(spec, piece.at):
            kept.append(piece)
            continue
        last = kept[-1] if kept else None
        if isinstance(last, _Gone) and last.reason == "outside_time_window":
            kept[-1] = _Gone(last.after, piece.at, last.count + 1, last.reason)
        else:
            kept.append(_Gone(piece.at - 1, piece.at, 1, "outside_time_window"))
    return kept


def _closed_through(spec: ScheduleSpec, anchor: Ms, low: Ms, high: Ms) -> Ms:
    """How far after `low` no fire can begin inside the window: one span, and nothing of it was missed."""
    look = next_look(spec, anchor, low) if spec.options is not None and spec.options.window is not None else None
    return low if look is None else min(high, look - 1)


def _never_inside(spec: ScheduleSpec, fire: Ms) -> bool:
    window = spec.options.window if spec.options else None
    if window is None or is_open(window, fire):
        return False
    opening = next_opening(window, fire)
    return opening is None or opening > fire + spec.grace


def _emit(draft: Draft, pieces: list[_Fire | _Gone], opened: OpenRuns, next_at: Ms | None) -> None:
    schedule = draft.schedule
    spec = schedule.spec
    count, waiting, blocker = opened.count, opened.waiting, opened.oldest
    for piece in pieces:
        if isinstance(piece, _Gone):
            draft.emit(
                FiresElided(
                    ns=schedule.ns,
                    schedule_id=schedule.id,
                    revision=schedule.revision,
                    after=piece.after,
                    through=piece.through,
                    count=piece.count,
                    reason=piece.reason,
                    next_at=next_at,
                    consumed=piece.reason != "dst",
                )
            )
            continue
        key = str(piece.at)
        run_id = fire_id(schedule.id, key, piece.at)
        skip = not piece.replay and (
            (spec.overlap == "forbid" and count > 0) or (spec.overlap == "queue_one" and waiting > 0)
        )
        if skip:
            draft.emit(
                RunSkipped(
                    ns=schedule.ns,
                    schedule_id=schedule.id,
                    run_id=run_id,
                    task=spec.task,
                    fire_time=piece.at,
                    fire_key=key,
                    revision=schedule.revision,
                    reason="overlap",
                    by=blocker,
                    next_at=next_at,
                )
            )
            continue
        if spec.overlap == "cancel_running" and count > 0:
            draft.cancels_open = True
        draft.emit(
            RunScheduled(
                ns=schedule.ns,
                schedule_id=schedule.id,
                run_id=run_id,
                task=spec.task,
                origin="fire",
                fire_time=piece.at,
                fire_key=key,
                revision=schedule.revision,
                due_at=piece.at + offset(schedule.id, spec, piece.at),
                lane=lane_of(schedule.ns, spec.queue),
                priority=spec.priority,
                gates=gates_of(schedule),
                body=spec.body,
                options=spec.options,
                catch_up=piece.catch_up,
                coalesced=piece.coalesced,
                next_at=next_at,
            )
        )
        count, waiting, blocker = count + 1, waiting + 1, blocker or run_id
    if is_fixed_delay(spec):
        assert isinstance(spec.trigger, EverySpec)
        # The end of the run tells the next fire; of a skipped one there is no end.
        skipped = isinstance(draft.events[-1], RunSkipped)
        draft.set(next_at=_end(pieces[-1]) + spec.trigger.interval if skipped else None)


def _finish(draft: Draft, left: int | None, *, done: bool) -> None:
    """Say that no fire will follow, when that is so."""
    schedule = draft.schedule
    if not done:
        return
    consumed = schedule.fired - (draft.before.fired if draft.before else 0)
    reason = None
    if left is not None and consumed >= left:
        reason = "max_runs"
    elif is_fixed_delay(schedule.spec):
        past_end = schedule.spec.end is not None and (schedule.next_at or 0) > schedule.spec.end
        reason = "ended" if past_end else None
    elif schedule.next_at is None:
        unbounded = _next_without_end(schedule) if schedule.spec.end is not None else None
        reason = "exhausted" if unbounded is None else "ended"
    if reason is not None:
        draft.emit(ScheduleFinished(ns=schedule.ns, schedule_id=schedule.id, reason=reason, cursor=schedule.cursor))


def _next_without_end(schedule: Schedule) -> Ms | None:
    """The next fire if there were no end."""
    low, _ = bounds(schedule.spec, schedule.cursor, schedule.cursor)
    return trigger_of(schedule.spec, schedule.anchor).next_ms(low)


def gates_of(schedule: Schedule) -> tuple[str, ...]:
    """The gates of this schedule's runs: its own unless runs may overlap, then its task's."""
    own = () if schedule.spec.overlap == "allow_parallel" else (schedule_gate(schedule.id),)
    return own + schedule.spec.gates


def offset(schedule_id: str, spec: ScheduleSpec, fire: Ms) -> Ms:
    """How much later than the fire time a run is due: spread is the same for every fire, jitter is not."""
    late = 0
    if spec.spread:
        late += _hash(schedule_id) % spec.spread
    if spec.jitter:
        late += _hash(f"{schedule_id}:{fire}") % spec.jitter
    return late


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
