"""Planning: turn the fires of a schedule that are due at an instant into runs and spans.

The rules read the definition, the cursor and the number of open runs, and nothing else. Every fire in (cursor, now]
ends up in exactly one plan item. A `Fire` becomes a run, or a run that is skipped at once. An `Elision` becomes a
span, with the reason why its fires will not run. Lists of items are in order of time. The cost grows with the days that
are covered, not with the number of fires. `anchor` is the origin of an interval trigger that has none of its own.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.events import FireCountedAgain, FiresElided, RunScheduled, RunSkipped, ScheduleFinished
from mainspring.model.ids import fire_id
from mainspring.model.instant import Ms
from mainspring.model.policies import Overlap, WindowSpec
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.model.trigger import EverySpec
from mainspring.rules.lanes import lane_of, schedule_gate
from mainspring.rules.plan_items import CountedAgain, Elision, Fire, Item, cut_to_limit, end_of, keep_known_runs
from mainspring.rules.schedule_draft import ScheduleDraft
from mainspring.rules.triggers import Every, Trigger, compile_trigger
from mainspring.rules.windows import is_open, next_opening

#: Upper bound of the runs in one change; further runs follow in the next change.
MAX_RUNS_PER_CHANGE = 200


class OpenRuns(Struct, frozen=True, gc=False):
    """The open runs of a schedule: how many there are, how many of them are not running, and the id of the oldest.

    `unserved`: True if the oldest one waits for a task that no live instance has.
    """

    count: int = 0
    waiting: int = 0
    oldest: str | None = None
    unserved: bool = False
    #: Times after the cursor of fires that have a run from before a rewind, in order, also if the run has ended.
    known: tuple[Ms, ...] = ()


def trigger_of(spec: ScheduleSpec, anchor: Ms) -> Trigger:
    """Return the trigger that computes the fires of a definition. Only an interval without an anchor uses `anchor`."""
    trigger = spec.trigger
    if isinstance(trigger, EverySpec):  # cheaper to make than to look up in the cache
        return Every.from_spec(trigger if trigger.anchor is not None else replace(trigger, anchor=anchor))
    return compile_trigger(trigger)


def is_fixed_delay(spec: ScheduleSpec) -> bool:
    """Return True if each fire comes a fixed delay after the end of the last run, so it is unknown before that end."""
    return isinstance(spec.trigger, EverySpec) and spec.trigger.fixed_delay


def clip_to_schedule(spec: ScheduleSpec, after: Ms, through: Ms) -> tuple[Ms, Ms]:
    """Return (after, through] cut to the schedule's start and end, as (low, high]. If nothing is left, low is high."""
    low = after if spec.start is None else max(after, spec.start - 1)
    high = through if spec.end is None else min(through, spec.end)
    return low, max(low, high)


def count_owed(spec: ScheduleSpec, anchor: Ms, after: Ms, through: Ms) -> int:
    """Return the number of fires in (after, through] that need a run or a span.

    A fire that a clock change skips under `gap="skip"` also counts: it does not run, but the ledger holds a span for it
    (ADR 4).
    """
    low, high = clip_to_schedule(spec, after, through)
    trigger = trigger_of(spec, anchor)
    return trigger.count_ms(low, high) + len(trigger.dropped_ms(low, high))


def span_counter(spec: ScheduleSpec, anchor: Ms) -> Callable[[str, Ms, Ms], int]:
    """Return a function that counts the fires of a definition which a span of a reason has in (after, through].

    A span "dst" has the fires that a clock change dropped, a span "paused" all fires. A span of any other reason has
    the fires that no clock change dropped.
    """
    trigger = trigger_of(spec, anchor)

    def count(reason: str, after: Ms, through: Ms) -> int:
        low, high = clip_to_schedule(spec, after, through)
        fires = 0 if reason == "dst" else trigger.count_ms(low, high)
        return fires + (len(trigger.dropped_ms(low, high)) if reason in ("dst", "paused") else 0)

    return count


def next_fire(spec: ScheduleSpec, anchor: Ms, after: Ms) -> Ms | None:
    """Return the first fire after `after` between the schedule's start and end, None if there is none."""
    low = after if spec.start is None else max(after, spec.start - 1)
    found = trigger_of(spec, anchor).next_ms(low)
    return None if found is None or (spec.end is not None and found > spec.end) else found


def next_planning(spec: ScheduleSpec, anchor: Ms, after: Ms) -> Ms | None:
    """Return the next instant at which the schedule must be planned, None if it has no fire after `after`.

    Without a time window, that is the next fire. With a window, it is the first fire that can begin inside the window,
    so that all fires before become one span; if there is no such fire, it is the next fire. If no fire is left before
    the schedule's end, but a clock change skipped one under `gap="skip"`, it is the time of the skipped fire, because
    that fire needs a span (ADR 4).
    """
    fire = next_fire(spec, anchor, after)
    if fire is None and spec.end is not None:
        dropped = trigger_of(spec, anchor).dropped_ms(*clip_to_schedule(spec, after, spec.end))
        return dropped[0] if dropped else None
    window = _window_of(spec)
    if fire is None or window is None or not _misses_window(spec, fire):
        return fire
    opening = next_opening(window, fire)
    later = next_fire(spec, anchor, opening - spec.grace - 1) if opening is not None else None
    return fire if later is None else later


def settle(schedule: Schedule, open_runs: OpenRuns, now: Ms, limit: int = MAX_RUNS_PER_CHANGE) -> ScheduleDraft:
    """Turn every fire that is due at `now` into a run or a part of a span, and return the draft of that change.

    The draft makes at most `limit` runs. `draft.more` is True if further due fires are left for the next change. The
    draft also sets `next_at`, the instant of the next planning, and finishes the schedule if no fire is left. The draft
    of a schedule that is not active is empty.
    """
    draft = ScheduleDraft(schedule)
    if schedule.state != "active":
        return draft
    spec = schedule.spec
    left = _fires_left(schedule)
    fixed = is_fixed_delay(spec)
    single = (
        None if fixed or left == 0 or open_runs.known else _single_fire(spec, schedule.anchor, schedule.cursor, now)
    )
    if single is not None:
        fire, following = single
        _emit(draft, [fire], open_runs, following)
        if following is None or left is not None:
            _finish(draft, left, done=True)
        return draft
    items, done = _due_items(schedule, now, limit, left)
    items = keep_known_runs(items, open_runs.known, span_counter(spec, schedule.anchor))
    draft.more = not done
    if items:
        _emit(draft, items, open_runs, None if fixed else next_planning(spec, schedule.anchor, end_of(items[-1])))
    elif not fixed:
        draft.set(next_at=next_planning(spec, schedule.anchor, schedule.cursor))
    _finish(draft, left, done=done)
    return draft


def _fires_left(schedule: Schedule) -> int | None:
    """Return the number of fires that `max_runs` still allows, None if there is no maximum."""
    maximum = schedule.spec.max_runs
    return None if maximum is None else max(0, maximum - schedule.fired)


def _due_items(schedule: Schedule, now: Ms, limit: int, left: int | None) -> tuple[list[Item], bool]:
    """Return the plan items of the fires due at `now`, and True if they cover all these fires.

    False: there are more than `limit` runs, and the fires from the first run beyond `limit` on are left out. `left` is
    the number of fires that `max_runs` still allows, None if there is no maximum.
    """
    if left == 0:
        return [], True
    if is_fixed_delay(schedule.spec):
        return _fixed_delay_items(schedule, now), True
    spec = schedule.spec
    first, high = clip_to_schedule(spec, schedule.cursor, now)
    low = first
    trigger = trigger_of(spec, schedule.anchor)
    total = trigger.count_ms(low, high)
    if left is not None and total >= left:
        high, total = _find_nth_fire(trigger, low, high, left), left
    items: list[Item] = []
    shut = _find_closed_end(spec, schedule.anchor, low, high)
    outside = trigger.count_ms(low, shut) if shut > low else 0
    if outside:
        items.append(Elision(low, shut, outside, "outside_time_window"))
        low, total = shut, total - outside
    if total:
        items += _apply_missed_policy(spec, trigger, low, high, total, now)
    items, done = cut_to_limit(_apply_window(spec, items), limit)
    through = end_of(items[-1]) if items and not done else high
    dropped = [Elision(at - 1, at, 1, "dst") for at in trigger.dropped_ms(first, through)]
    return sorted([*items, *dropped], key=end_of), done


def _fixed_delay_items(schedule: Schedule, now: Ms) -> list[Item]:
    """Return the next fire of a fixed-delay schedule if it is due, else an empty list. It never counts as missed."""
    _, high = clip_to_schedule(schedule.spec, schedule.cursor, now)
    due = schedule.next_at is not None and schedule.next_at <= high
    return [Fire(schedule.next_at or 0)] if due else []


def _single_fire(spec: ScheduleSpec, anchor: Ms, cursor: Ms, now: Ms) -> tuple[Fire, Ms | None] | None:
    """Return the due fire and the instant of the next planning, if exactly one fire is due and it is not missed.

    Return None in any other case, for a schedule with a window, and if a clock change dropped a fire. Why: one due fire
    is the frequent case, and it can be planned without counting fires.
    """
    if _window_of(spec) is not None:
        return None
    trigger = trigger_of(spec, anchor)
    low, high = (cursor, now) if spec.start is None and spec.end is None else clip_to_schedule(spec, cursor, now)
    first = trigger.next_ms(low)
    if first is None or first > high or first < now - spec.grace:
        return None
    second = trigger.next_ms(first)
    if (second is not None and second <= high) or trigger.dropped_ms(low, high):
        return None
    return Fire(first), second if spec.end is None else next_planning(spec, anchor, first)


def _find_nth_fire(trigger: Trigger, low: Ms, high: Ms, n: int) -> Ms:
    """Return the n-th fire after `low`, counted from 1. The caller makes sure that it lies at or before `high`."""
    if n <= 1_000:
        return trigger.fires_ms(low, high, n)[-1]
    reach = range(low, high + 1)
    return reach[bisect.bisect_left(reach, n, key=lambda at: trigger.count_ms(low, at))]


def _apply_missed_policy(spec: ScheduleSpec, trigger: Trigger, low: Ms, high: Ms, total: int, now: Ms) -> list[Item]:
    """Return the plan items of the `total` fires in (low, high], by the schedule's policy `missed`.

    A fire is missed if it lies more than `grace` before `now`. With "skip", the newest fire becomes a run if it is not
    missed, and a span covers all other fires. With the other policies, `_catch_up` makes the items of missed fires; of
    the fires that are not missed, the newest `replay_max` become runs, and a span covers the older ones.
    """
    edge = min(high, now - spec.grace - 1)  # fires at or before this instant are missed
    if spec.missed == "skip":
        newest = trigger.last_ms(low, high, 1)
        if newest and newest[0] > edge:
            return [*_missed_span(low, newest[0] - 1, total - 1), Fire(newest[0])]
        return _missed_span(low, high, total)
    missed = trigger.count_ms(low, edge) if edge > low else 0
    items = _catch_up(spec, trigger, low, edge, missed, now) if missed else []
    on_time = total - missed
    fires = trigger.last_ms(max(low, edge), high, min(on_time, spec.replay_max)) if on_time else []
    if len(fires) < on_time:
        items += _missed_span(max(low, edge), fires[0] - 1 if fires else high, on_time - len(fires))
    return [*items, *(Fire(at) for at in fires)]


def _catch_up(spec: ScheduleSpec, trigger: Trigger, low: Ms, edge: Ms, missed: int, now: Ms) -> list[Item]:
    """Return the plan items of the `missed` missed fires in (low, edge], by the policy.

    "catch_up_once": one run for all of them. "replay_all": one run for each of the newest `replay_max` fires that are
    at most `replay_age` old at `now`; older fires go into a span.
    """
    if spec.missed == "catch_up_once":
        last = trigger.last_ms(low, edge, 1)[0]
        return [*_missed_span(low, last - 1, missed - 1), Fire(last, catch_up=True, coalesced=missed - 1)]
    oldest = max(low, now - spec.replay_age - 1)
    replayed = trigger.last_ms(oldest, edge, spec.replay_max) if edge > oldest else []
    before = replayed[0] - 1 if replayed else edge
    return [
        *_missed_span(low, before, missed - len(replayed)),
        *(Fire(at, catch_up=True, replay=True) for at in replayed),
    ]


def _missed_span(after: Ms, through: Ms, count: int) -> list[Item]:
    """Return a list with the span of `count` missed fires in (after, through]; an empty list if `count` is 0."""
    return [Elision(after, through, count, "missed")] if count else []


def _apply_window(spec: ScheduleSpec, items: list[Item]) -> list[Item]:
    """Return the plan items, with a span in place of fires that cannot begin inside the schedule's window.

    Neighbouring fires share one span. A fire at most `grace` before an opening of the window stays a run: a worker
    executes that run if it claims it after the opening, else skips it. Runs that make up for missed fires also stay.
    """
    if _window_of(spec) is None:
        return items
    kept: list[Item] = []
    for item in items:
        if not isinstance(item, Fire) or item.catch_up or not _misses_window(spec, item.at):
            kept.append(item)
            continue
        last = kept[-1] if kept else None
        if isinstance(last, Elision) and last.reason == "outside_time_window":
            kept[-1] = Elision(last.after, item.at, last.count + 1, last.reason)
        else:
            kept.append(Elision(item.at - 1, item.at, 1, "outside_time_window"))
    return kept


def _find_closed_end(spec: ScheduleSpec, anchor: Ms, low: Ms, high: Ms) -> Ms:
    """Return an instant in [low, high] up to which no fire after `low` can begin inside the window.

    It is the instant before the next planning (`next_planning`), at most `high`. Return `low` if the schedule has no
    window or no further fire. The caller puts the fires after `low` up to that instant into one span; none of them
    counts as missed.
    """
    planned = None if _window_of(spec) is None else next_planning(spec, anchor, low)
    return low if planned is None else min(high, planned - 1)


def _window_of(spec: ScheduleSpec) -> WindowSpec | None:
    return spec.options.window if spec.options is not None else None


def _misses_window(spec: ScheduleSpec, fire: Ms) -> bool:
    """Return True if the window is closed at a fire and does not open within `grace` after it."""
    window = _window_of(spec)
    if window is None or is_open(window, fire):
        return False
    opening = next_opening(window, fire)
    return opening is None or opening > fire + spec.grace


def _emit(draft: ScheduleDraft, items: list[Item], open_runs: OpenRuns, next_at: Ms | None) -> None:
    """Add the events of `items` (one or more) to a draft: spans, runs, and runs that the overlap policy skips.

    Set `draft.cancels_open` if a run is added while others are open under "cancel_running". `open_runs`: the runs open
    before this draft; runs added here count, too. `next_at`: the next planning after all items, put into each event,
    None if there is none; also None for a fixed delay, whose next planning is set in the row only.
    """
    schedule = draft.schedule
    overlap = schedule.spec.overlap
    count, waiting, blocker = open_runs.count, open_runs.waiting, open_runs.oldest
    for item in items:
        if isinstance(item, Elision):
            draft.emit(span_event(schedule, item, next_at))
            continue
        if isinstance(item, CountedAgain):
            draft.emit(counted_event(schedule, item, next_at))
            continue
        if not item.replay and _is_overlap_refused(overlap, count, waiting):
            draft.emit(_skip_event(schedule, item, blocker, next_at, "no_worker" if open_runs.unserved else "overlap"))
            continue
        if overlap == "cancel_running" and count > 0:
            draft.cancels_open = True
        event = _run_event(schedule, item, next_at)
        draft.emit(event)
        count, waiting, blocker = count + 1, waiting + 1, blocker or event.run_id
    if is_fixed_delay(schedule.spec):
        _set_next_at_after_delay(draft, end_of(items[-1]))


def _is_overlap_refused(overlap: Overlap, count: int, waiting: int) -> bool:
    """Return True if the overlap policy skips a fire while `count` runs are open, of which `waiting` do not run yet."""
    return (overlap == "forbid" and count > 0) or (overlap == "queue_one" and waiting > 0)


def _set_next_at_after_delay(draft: ScheduleDraft, fire: Ms) -> None:
    """Set `next_at` of a fixed-delay schedule after its fire at `fire`: None, because the end of the run is not known.

    If the fire was skipped, no run will end, so the interval counts from the fire time.
    """
    trigger = draft.schedule.spec.trigger
    assert isinstance(trigger, EverySpec)
    skipped = isinstance(draft.events[-1], RunSkipped | FireCountedAgain)
    draft.set(next_at=fire + trigger.interval if skipped else None)


def span_event(schedule: Schedule, item: Elision, next_at: Ms | None) -> FiresElided:
    """Return the event of a span. `next_at`: the next planning."""
    return FiresElided(
        ns=schedule.ns,
        schedule_id=schedule.id,
        revision=schedule.revision,
        after=item.after,
        through=item.through,
        count=item.count,
        reason=item.reason,
        next_at=next_at,
        consumed=item.reason not in ("dst", "paused"),
    )


def counted_event(schedule: Schedule, item: CountedAgain, next_at: Ms | None) -> FireCountedAgain:
    """Return the event of a fire whose run counts again. `next_at`: the next planning."""
    return FireCountedAgain(ns=schedule.ns, schedule_id=schedule.id, fire_time=item.at, next_at=next_at)


def _skip_event(schedule: Schedule, fire: Fire, blocker: str | None, next_at: Ms | None, reason: str) -> RunSkipped:
    key = str(fire.at)
    return RunSkipped(
        ns=schedule.ns,
        schedule_id=schedule.id,
        run_id=fire_id(schedule.id, key, fire.at),
        task=schedule.spec.task,
        fire_time=fire.at,
        fire_key=key,
        revision=schedule.revision,
        reason=reason,
        by=blocker,
        next_at=next_at,
    )


def _run_event(schedule: Schedule, fire: Fire, next_at: Ms | None) -> RunScheduled:
    spec, key = schedule.spec, str(fire.at)
    return RunScheduled(
        ns=schedule.ns,
        schedule_id=schedule.id,
        run_id=fire_id(schedule.id, key, fire.at),
        task=spec.task,
        origin="fire",
        fire_time=fire.at,
        fire_key=key,
        revision=schedule.revision,
        due_at=fire.at + start_offset(schedule.id, spec, fire.at),
        lane=lane_of(schedule.ns, spec.queue),
        priority=spec.priority,
        gates=gates_of(schedule),
        body=spec.body,
        options=spec.options,
        catch_up=fire.catch_up,
        coalesced=fire.coalesced,
        next_at=next_at,
    )


def _finish(draft: ScheduleDraft, left: int | None, *, done: bool) -> None:
    """Finish the draft's schedule if `done` and no fire is left to plan.

    `done`: True if the draft covers all fires that are due. `left`: the number of fires that `max_runs` allowed before
    this draft, None if there is no maximum.
    """
    schedule = draft.schedule
    if not done:
        return
    consumed = schedule.fired - (draft.before.fired if draft.before else 0)
    reason = "max_runs" if left is not None and consumed >= left else _end_reason(schedule)
    if reason is not None:
        draft.emit(ScheduleFinished(ns=schedule.ns, schedule_id=schedule.id, reason=reason, cursor=schedule.cursor))


def _end_reason(schedule: Schedule) -> str | None:
    """Return why no fire is left: "ended" by the schedule's end, or "exhausted" by its trigger. None: one may come."""
    if is_fixed_delay(schedule.spec):
        past_end = schedule.spec.end is not None and (schedule.next_at or 0) > schedule.spec.end
        return "ended" if past_end else None
    if schedule.next_at is not None:
        return None
    unbounded = _next_without_end(schedule) if schedule.spec.end is not None else None
    return "exhausted" if unbounded is None else "ended"


def _next_without_end(schedule: Schedule) -> Ms | None:
    """Return the fire that would come next if the schedule had no end, None if its trigger has no more fires."""
    low, _ = clip_to_schedule(schedule.spec, schedule.cursor, schedule.cursor)
    return trigger_of(schedule.spec, schedule.anchor).next_ms(low)


def gates_of(schedule: Schedule) -> tuple[str, ...]:
    """Return the gate names of a schedule's runs: those of its spec, and its own gate unless runs may overlap."""
    own = () if schedule.spec.overlap == "allow_parallel" else (schedule_gate(schedule.id),)
    return own + schedule.spec.gates


def start_offset(schedule_id: str, spec: ScheduleSpec, fire: Ms) -> Ms:
    """Return the delay between a fire and the time at which its run is due.

    The option `spread` delays all fires of the schedule by one value, `jitter` each fire by a value of its own. Both
    values come from hashes, not from random numbers, so every instance computes an equal delay for a fire.
    """
    late = 0
    if spec.spread:
        late += _hash(schedule_id) % spec.spread
    if spec.jitter:
        late += _hash(f"{schedule_id}:{fire}") % spec.jitter
    return late


def _hash(text: str) -> int:
    """Return a 64-bit number that depends on the text alone, unlike Python's `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
