"""The settler: due → rules → apply, for everything that waits for a decision rather than for a worker.

Schedules whose time has come, leases that ended, schedules something pointed at, gates with room.
Any instance settles; no lock is open while Python decides, the guard of the change decides who was first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Mapping

from mainspring.engine.batcher import Batcher
from mainspring.engine.lookahead import Lookahead
from mainspring.engine.service import Service
from mainspring.model.change import Change, RunLease
from mainspring.model.events import ClockStepped
from mainspring.model.http import HTTP_TASK, MAX_CRASHES
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, OPEN, Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Handler
from mainspring.ports.store import Agenda, Due, DueSchedule, Runs, Store
from mainspring.rules.draft import Draft
from mainspring.rules.lanes import GONE, touches_of
from mainspring.rules.lifecycle import Expire, decide, evolve
from mainspring.rules.planning import OpenRuns, is_fixed_delay, settle
from mainspring.rules.scheduling import delete, pause, rearm, resume

log = logging.getLogger("mainspring.engine")

BATCH = 200
#: A step of the wall clock against boot time, in milliseconds, after which planning waits so many seconds.
CLOCK_STEP = 60_000
STEADY = 5.0
#: Seconds that no timer is exact to: what is due so soon is due.
NOW = 1e-4
#: After so many looks at gates that freed nobody, a released gate waits so many seconds for others.
IN_VAIN, COMPANY = 5, 0.02
#: Later than any fire.
NEVER: Ms = 1 << 62
#: A schedule that cannot be planned is tried at every hold's end, and said so every so many seconds.
SAY_AGAIN = 600.0


class Settler(Service):
    """One loop for four agendas; each can be stepped by hand."""

    name = "settler"

    def __init__(
        self,
        store: Store,
        batcher: Batcher,
        change_id: Callable[[], str],
        handlers: Mapping[str, Handler],
        clock: Clock,
        poll: float,
        cancel_older: Callable[[Draft], Awaitable[None]],
        unparked: Callable[[], None],
    ) -> None:
        super().__init__(poll)
        self._cancel_older = cancel_older
        self._unparked = unparked
        self._clock = clock
        self._wall_offset = clock.now() - clock.boot()
        self._steady_from = 0.0
        self._said: dict[str, float] = {}
        self._store = store
        self._batcher = batcher
        self._change_id = change_id
        self._handlers = handlers
        #: A worker leaves schedules to others; what its own runs may leave behind it settles like everybody.
        self.plans = True
        #: Told the store's now at each look.
        self.heard: Callable[[Ms], None] = lambda now: None
        #: Takes what has ended and is not heard of yet: it goes along with the commit that plans.
        self.hear: Callable[[], None] = lambda: None
        #: Runs that ended here, and whose end goes into the next commit.
        self.ending: Container[str] = ()
        self._steps: dict[Agenda, Callable[[], Awaitable[float]]] = {
            Agenda.SCHEDULES: self.plan,
            Agenda.TOUCHED: self.look_again,
            Agenda.EXPIRED: self.rescue,
            Agenda.GATES: self.open_gates,
        }
        #: When each agenda is looked at next, in monotonic seconds.
        self._next = dict.fromkeys(self._steps, 0.0)
        self._lookahead = Lookahead(clock)
        self._in_vain = 0
        self._plans_at: Ms = 0
        self._soonest: Ms = NEVER

    def wake(self, *agendas: Agenda) -> None:
        """Something changed: look now, at these agendas or at all of them."""
        for agenda in agendas or self._steps:
            self._next[agenda] = 0.0
        super().wake()

    def released(self) -> None:
        """A gate has room. When nobody waited behind the last few of them, several share a look."""
        if self.since is not None:  # a step is under way, and the gates come last
            self._next[Agenda.GATES] = 0.0
            return
        at = 0.0 if self._in_vain < IN_VAIN else self._clock.monotonic() + COMPANY
        if at < self._next[Agenda.GATES]:
            self._next[Agenda.GATES] = at
            super().wake()

    def expect(self, next_at: Ms) -> None:
        """A schedule will be due then; nothing is done when planning happens before that anyway."""
        self._soonest = min(self._soonest, next_at)
        if next_at < self._plans_at:
            self.wake(Agenda.SCHEDULES)

    async def run_once(self) -> float:
        """Every agenda whose time has come; the seconds until the first of them has something again."""
        failed: Exception | None = None
        for agenda, step in self._steps.items():
            now = self._clock.monotonic()
            if self._next[agenda] > now + NOW:
                continue
            self._next[agenda] = now + self.poll  # unless somebody says otherwise meanwhile
            try:
                wait = await step()
            except Exception as error:  # one agenda's trouble must not stop the others
                self._next[agenda] = 0.0
                failed = failed or error
            else:
                self._next[agenda] = min(self._next[agenda], self._clock.monotonic() + wait)
        if failed is not None:
            raise failed
        return max(0.0, min(self._next.values()) - self._clock.monotonic())

    # ── schedules whose time has come ──────────────────────────────────────

    async def plan(self) -> float:
        """Turn due schedules into runs and spans."""
        if not self.plans:
            return self.poll
        unsteady = await self._clock_stepped()
        if unsteady > 0:
            return unsteady
        self._soonest, self._plans_at = NEVER, 0
        due = await self._store.due(Agenda.SCHEDULES, BATCH, ahead=self._lookahead.ms)
        looked = self._clock.monotonic()
        self.heard(due.now)
        if due.schedules:
            self.hear()
        more = False
        fires = 0
        drafts: list[Draft] = []
        for row in due.schedules:
            next_at = row.schedule.next_at or 0
            try:
                draft = self._settle(row, max(due.now, next_at))
            except Exception:  # for example a zone this machine does not know: the others must go on
                self._say_unplannable(row.schedule)
                continue
            if next_at > due.now and not _may_be_early(row, draft):
                self._soonest = min(self._soonest, next_at)
                continue
            more = more or draft.more
            fires += len(draft.runs)
            if draft.changed:
                drafts.append(draft)
        changes = [draft.change(self._change_id()) for draft in drafts]
        results = await self._batcher.submit_all(changes) if changes else []
        for draft, result in zip(drafts, results, strict=True):
            if draft.cancels_open and result.ok:  # refused means another instance was first: nothing to do
                await self._cancel_older(draft)
        self._lookahead.counted(fires)
        if more or len(due.schedules) >= BATCH:
            return 0.0
        matters = min(self._soonest, NEVER if due.next_at is None else due.next_at)
        self._plans_at = self._lookahead.look_at(due.now, matters)
        return (self._plans_at - due.now) / 1000 - (self._clock.monotonic() - looked)

    @property
    def unplannable(self) -> frozenset[str]:
        """Schedules that could not be planned here."""
        return frozenset(self._said)

    def _say_unplannable(self, schedule: Schedule) -> None:
        now = self._clock.monotonic()
        if now >= self._said.get(schedule.id, now):
            self._said[schedule.id] = now + SAY_AGAIN
            log.exception("schedule %r cannot be planned; it is tried again and again", schedule.name)

    async def _clock_stepped(self) -> float:
        """Seconds to wait with planning because the wall clock has just jumped: it may jump back."""
        step = self._clock.now() - self._clock.boot() - self._wall_offset
        if abs(step) >= CLOCK_STEP:
            log.warning("the wall clock stepped by %d s; planning waits %g s", step // 1000, STEADY)
            self._wall_offset += step
            self._steady_from = self._clock.monotonic() + STEADY
            note = ClockStepped(step_ms=step)
            await self._batcher.submit(Change(id=self._change_id(), events=(note,)))
        return self._steady_from - self._clock.monotonic()

    def _settle(self, row: DueSchedule, now: Ms) -> Draft:
        schedule = row.schedule
        if schedule.state == "paused":
            return resume(schedule, now, reason="until")
        draft = settle(schedule, _opened(row, self.ending), now)
        self._delete_if_terminal(draft, row.open)
        return draft

    @staticmethod
    def _delete_if_terminal(draft: Draft, open_runs: int) -> None:
        schedule = draft.schedule
        ended = schedule.state == "finished" and schedule.spec.terminal == "delete"
        if ended and open_runs == 0 and not any(run.state in OPEN for run in draft.runs):
            for event in delete(schedule, OpenRuns(), schedule.cursor, reason="finished").events:
                draft.emit(event)

    # ── schedules something pointed at ─────────────────────────────────────

    async def look_again(self) -> float:
        """Fixed-delay schedules get their next fire; a schedule whose retries are spent may be paused."""
        due = await self._store.due(Agenda.TOUCHED, BATCH)
        for row in due.schedules:
            if await self._waits_for_others(row):
                continue  # the mark stays, so that it is looked at again when the hold ends
            draft = await self._look_again(row, due.now)
            if draft is None:
                continue
            await self._batcher.submit(draft.change(self._change_id(), touched=row.touched))
        return 0.0 if len(due.schedules) >= BATCH else self.poll

    async def _waits_for_others(self, row: DueSchedule) -> bool:
        """True when a deletion must follow the last end, and none of the open runs will point here when it ends.

        Runs of an earlier definition know nothing of the deletion that came with a later one.
        """
        schedule = row.schedule
        if row.open == 0 or schedule.spec.terminal != "delete" or schedule.state != "finished":
            return False
        found = await self._store.find(Runs(schedule_id=schedule.id, states=tuple(OPEN), limit=1_000))
        return not any(run.options is not None and run.options.rearm for run in found)

    async def _look_again(self, row: DueSchedule, now: Ms) -> Draft | None:
        """What follows from the end of a run; None when it is too early to say, and the mark must stay."""
        schedule = row.schedule
        last = await self._last(schedule.id, ENDED - {State.SKIPPED})
        options = schedule.spec.options
        since = schedule.updated_at  # what failed before a resume is over
        spent = last is not None and last.state is State.FAILED and last.dead and (last.ended_at or 0) >= since
        if spent and options is not None and options.on_exhausted == "pause" and schedule.state == "active":
            return pause(schedule, _opened(row), now, reason="retries_exhausted")
        if spent and last is not None and last.reason == GONE and schedule.state == "active":
            return pause(schedule, _opened(row), now, reason=f"gone: {last.error}"[:500])
        draft = Draft(schedule)
        if is_fixed_delay(schedule.spec):
            if row.open and schedule.state == "active":
                # A run of an earlier definition would not point here when it ends; and no event tells a next fire
                # from none, so a write that changes nothing could undo, late, what somebody else has armed meanwhile.
                return None
            if row.open == 0:
                skipped = await self._last(schedule.id, frozenset({State.SKIPPED}))
                ends = [run.ended_at for run in (last, skipped) if run is not None and run.ended_at is not None]
                draft = rearm(schedule, max(ends, default=now))
        elif schedule.state == "active" and schedule.next_at is None:
            draft = settle(schedule, _opened(row), now)  # only a damaged row is like that: see Keeper.repair
        self._delete_if_terminal(draft, row.open)
        return draft

    async def _last(self, schedule_id: str, states: frozenset[State]) -> Run | None:
        """The newest run in one of the states. Fires skipped while a run was open are newer than it and end before."""
        found = await self._store.find(Runs(schedule_id=schedule_id, states=tuple(states), limit=1))
        return found[0] if found else None

    # ── leases that ended ──────────────────────────────────────────────────

    async def rescue(self) -> float:
        """A worker fell silent: its runs go back, or end where their budget says so."""
        due = await self._store.due(Agenda.EXPIRED, BATCH)
        self.heard(due.now)
        if due.runs:
            await self._batcher.submit_all([self._expire(run, due.now) for run in due.runs])
        return 0.0 if len(due.runs) >= BATCH else self._until(due)

    def _expire(self, run: Run, now: Ms) -> Change:
        handler = self._handlers.get(run.task)
        recovery = run.options.recovery if run.options else None
        crashes = run.options.max_crashes if run.options else None
        command = Expire(
            max_crashes=crashes or (handler.max_crashes if handler else _max_crashes(run.task)),
            recovery=recovery or (handler.recovery if handler else "retry"),
        )
        events = decide(run, command, now)
        after = evolve(run, events[0])
        log.warning("run %s: lease of %s ended, %s", run.id, run.owner, after.state)
        return Change(
            id=self._change_id(),
            guard=RunLease(run.id, run.epoch),
            run=after,
            events=events,
            releases=run.gates,
            touches=touches_of(after),
        )

    # ── gates with room ────────────────────────────────────────────────────

    async def open_gates(self) -> float:
        """Un-park what fits again."""
        due = await self._store.due(Agenda.GATES, BATCH)
        self._in_vain = 0 if due.unparked else self._in_vain + 1
        if due.unparked:
            self._unparked()
        return 0.0 if due.unparked >= BATCH else self.poll

    def _until(self, due: Due) -> float:
        return self.poll if due.next_at is None else max(0.0, (due.next_at - due.now) / 1000)


def _max_crashes(task: str) -> int:
    """For a task that is not known here."""
    return MAX_CRASHES if task == HTTP_TASK else 3


def _may_be_early(row: DueSchedule, draft: Draft) -> bool:
    """True when nothing that may happen until its time can change what becomes of the fire: it is simply a run."""
    fires = row.open == 0 and row.schedule.state == "active" and draft.schedule.state == "active"
    return fires and not draft.spans and all(run.state is State.WAITING for run in draft.runs)


def _opened(row: DueSchedule, ending: Container[str] = ()) -> OpenRuns:
    """What is open of a schedule. A run whose end is on its way is not: it is stored before the fire, or with it.

    Should that end be refused, the new run meets the schedule's gate.
    """
    open_still = [run for run in row.oldest if run.id not in ending]
    over = len(row.oldest) - len(open_still)
    return OpenRuns(row.open - over, row.waiting, open_still[0].id if open_still else None)
