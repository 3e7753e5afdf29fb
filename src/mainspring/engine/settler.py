"""The settler: reads due rows from the store, lets the rules decide what becomes of them, and commits the result.

It works on four agendas: schedules whose time has come, touched schedules, expired leases, and gates with room. Runs
parked at gates are unparked by the store itself, in `due`. Each instance runs a settler; with the role worker, it
leaves the first agenda to other instances. No lock is held while Python decides. If two instances decide about one row
at the same time, the guard of the change accepts the first change and refuses the second.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Mapping

from mainspring.engine.automatic_pause import log_automatic_pause
from mainspring.engine.commit.batcher import Batcher
from mainspring.engine.deletions import Deletions
from mainspring.engine.known_fires import find_known_fires
from mainspring.engine.lookahead import Lookahead
from mainspring.engine.loop import Loop
from mainspring.engine.rescue_log import log_rescue
from mainspring.engine.run_logger import RunLogger
from mainspring.model.change import Change, RunLease
from mainspring.model.events import ClockStepped
from mainspring.model.http import HTTP_TASK, MAX_CALL_CRASHES
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, ENDED, OPEN, Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Handler
from mainspring.ports.store import Agenda, Due, DueSchedule, Runs, Store
from mainspring.rules.lanes import AGENT_GONE, schedules_to_touch
from mainspring.rules.lifecycle import decide, evolve
from mainspring.rules.planning import OpenRuns, is_fixed_delay, settle
from mainspring.rules.run_commands import Expire
from mainspring.rules.schedule_commands import delete, pause, rearm, resume
from mainspring.rules.schedule_draft import ScheduleDraft

log = logging.getLogger("mainspring.engine")

#: The most rows of an agenda that one query reads from the store.
DUE_BATCH_ROWS = 200
#: The wall clock has stepped if its distance from boot time has changed by at least this many milliseconds.
MIN_CLOCK_STEP_MS: Ms = 60_000
#: Planning waits for this many seconds after a step of the wall clock, because the clock may soon step back.
STEADY_SECONDS = 5.0
#: No timer is exact to this many seconds: an agenda that is due within them counts as due.
DUE_SLACK_SECONDS = 1e-4
#: After this many gate checks in a row that unparked no run, the next check after a release is debounced.
IDLE_GATE_CHECKS = 5
#: A debounced gate check comes this many seconds after the release, so that several releases share the check.
GATE_DEBOUNCE_SECONDS = 0.02
#: A time after any fire.
AFTER_ANY_FIRE: Ms = 1 << 62
#: Seconds between two log lines about one schedule that cannot be planned. It is tried again whenever its hold ends.
UNPLANNABLE_LOG_SECONDS = 600.0


class Settler(Loop):
    """Works on the four agendas in one loop. Thread: engine loop.

    Each agenda has one method, which does one step of it: `plan`, `update_touched`, `rescue` and `unpark_runs`. Tests
    also call these methods directly.
    """

    name = "settler"

    def __init__(
        self,
        store: Store,
        batcher: Batcher,
        change_id: Callable[[], str],
        handlers: Mapping[str, Handler],
        clock: Clock,
        poll: float,
        cancel_older: Callable[[ScheduleDraft], Awaitable[None]],
        on_unparked: Callable[[], None],
        *,
        observe_store_time: Callable[[Ms], None] = lambda now: None,
        drain_outcomes: Callable[[], None] = lambda: None,
        ending: Container[str] = (),
        run_logger: RunLogger | None = None,
        is_unserved: Callable[[str, str], bool] = lambda task, lane: False,
        on_clock_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Work on the agendas of `store`, and commit through `batcher`. `change_id` returns a new id for a change.

        `handlers`: task name → handler; it tells crash budget and recovery of a task known here. `poll`: the poll
        interval in seconds. `cancel_older` cancels the open runs that a draft replaces. `on_unparked` is called after
        runs were unparked. `observe_store_time` receives the store's time whenever schedules or expired leases were
        read. `drain_outcomes` records the outcomes that wait in the workers' inboxes, so that they share the commit
        that plans. `ending`: ids of runs that ended here and whose end is queued for a commit. The crash budget is the
        number of crashes of its workers after which a run is not executed again (`max_crashes`). `run_logger` logs the
        rescue of runs, and learns the names of the schedules that are planned.
        `is_unserved(task, lane)` tells whether a run of that task in that lane waits in vain, because no live instance
        has the task.
        """
        super().__init__(poll)
        self._cancel_older = cancel_older
        self._on_unparked = on_unparked
        self._clock = clock
        self._wall_offset = clock.now() - clock.boot()
        self._steady_from = 0.0
        #: Schedules that could not be planned here, by id: when to log that again, in monotonic seconds.
        self._unplannable: dict[str, float] = {}
        self._store = store
        self._batcher = batcher
        self._change_id = change_id
        self._handlers = handlers
        self._observe_store_time = observe_store_time
        self._drain_outcomes = drain_outcomes
        self._ending = ending
        self._run_logger = run_logger or RunLogger(None, clock.monotonic)
        self._is_unserved = is_unserved
        self._on_clock_step = on_clock_step
        #: False for an instance with the role worker: it plans no schedules and works on the other three agendas.
        self.plans = True
        self._is_stopping = False
        self._steps: dict[Agenda, Callable[[], Awaitable[float]]] = {
            Agenda.SCHEDULES: self.plan,
            Agenda.TOUCHED: self.update_touched,
            Agenda.EXPIRED: self.rescue,
            Agenda.GATES: self.unpark_runs,
        }
        #: When the next step of each agenda is due, in monotonic seconds.
        self._next = dict.fromkeys(self._steps, 0.0)
        self._lookahead = Lookahead(clock)
        self._deletions = Deletions(store, batcher.submit_all, change_id)
        #: Gate checks since the last one that unparked a run.
        self._idle_gate_checks = 0
        #: When `plan` queries the store next, in store time; 0 while it is under way.
        self._plans_at: Ms = 0
        #: The earliest fire, in store time, for which `plan` must query although the last answer does not name it as
        #: `next_at`: a fire of a schedule that was committed since, or that was found but must not be planned ahead.
        self._soonest: Ms = AFTER_ANY_FIRE

    def enable_planning(self, *, enabled: bool) -> None:
        """Plan schedules from now on if `enabled`, else leave them to other instances."""
        self.plans, self._is_stopping = enabled, False

    def stop_planning(self) -> None:
        """Leave all fires to other instances, or to the next start, because this instance stops.

        Why: it begins no more runs, so the run of a fire would stay waiting, and with `overlap="forbid"` the later
        fires would be skipped.
        """
        self._is_stopping = True

    def is_store_usable(self) -> bool:
        """Return True if the last commit reached the store. While a disk is full, reads succeed, and commits fail."""
        return not self._batcher.is_failing

    def wake(self, *agendas: Agenda) -> None:
        """Do a step of each named agenda soon, or of all four if none is named, because something changed."""
        for agenda in agendas or self._steps:
            self._next[agenda] = 0.0
        super().wake()

    def check_gates_soon(self) -> None:
        """Check the gates soon, because a run released a gate.

        The check comes at once. But if the last `IDLE_GATE_CHECKS` checks unparked no run, it comes
        `GATE_DEBOUNCE_SECONDS` later, so that several releases share it.
        """
        if self.since is not None:  # `run_once` is under way, and the gates are its last agenda
            self._next[Agenda.GATES] = 0.0
            return
        is_debounced = self._idle_gate_checks >= IDLE_GATE_CHECKS
        at = self._clock.monotonic() + GATE_DEBOUNCE_SECONDS if is_debounced else 0.0
        if at < self._next[Agenda.GATES]:
            self._next[Agenda.GATES] = at
            super().wake()

    def plan_no_later_than(self, next_at: Ms) -> None:
        """Call `plan` at the store time `next_at` or earlier: a schedule that was just committed is due then."""
        self._soonest = min(self._soonest, next_at)
        if next_at < self._plans_at:
            self.wake(Agenda.SCHEDULES)

    async def run_once(self) -> float:
        """Do one step of each agenda that is due. Return the seconds until the next agenda is due; 0 if one is due now.

        Raises: the first error of a step, after the steps of all due agendas.
        """
        failed: Exception | None = None
        for agenda, step in self._steps.items():
            now = self._clock.monotonic()
            if self._next[agenda] > now + DUE_SLACK_SECONDS:
                continue
            self._next[agenda] = now + self.poll  # unless a wake-up brings it forward meanwhile
            try:
                wait = await step()
            except Exception as error:  # an error of one agenda must not stop the other agendas
                self._next[agenda] = 0.0
                failed = failed or error
            else:
                self._next[agenda] = min(self._next[agenda], self._clock.monotonic() + wait)
        if failed is not None:
            raise failed
        return max(0.0, min(self._next.values()) - self._clock.monotonic())

    # ── schedules whose time has come ──────────────────────────────────────

    async def plan(self) -> float:
        """Turn the due fires of schedules into runs and spans, and commit them. Return the seconds until the next call.

        One call covers up to `DUE_BATCH_ROWS` schedules and returns 0 if there may be more. Nothing is planned if
        `plans` is False, after `stop_planning`, or while planning waits after a step of the clock. Raises: StoreError.
        """
        if not self.plans or self._is_stopping:
            return self.poll
        unsteady = await self._seconds_until_steady()
        if unsteady > 0:
            return unsteady
        self._soonest, self._plans_at = AFTER_ANY_FIRE, 0
        due = await self._store.due(Agenda.SCHEDULES, DUE_BATCH_ROWS, ahead=self._lookahead.ms)
        queried_at = self._clock.monotonic()
        self._observe_store_time(due.now)
        if due.schedules:
            self._drain_outcomes()
        known = {
            row.schedule.id: await find_known_fires(self._store, row.schedule, due.now)
            for row in due.schedules
            if row.schedule.rewound is not None
        }
        settled = self._settle_due(due, known)
        await self._commit_drafts([draft for draft in settled if draft.changed])
        self._lookahead.count(sum(len(draft.runs) for draft in settled))
        if len(due.schedules) >= DUE_BATCH_ROWS or any(draft.more for draft in settled):
            return 0.0
        matters = min(self._soonest, AFTER_ANY_FIRE if due.next_at is None else due.next_at)
        self._plans_at = self._lookahead.next_query_at(due.now, matters)
        return (self._plans_at - due.now) / 1000 - (self._clock.monotonic() - queried_at)

    async def _commit_drafts(self, drafts: list[ScheduleDraft]) -> None:
        """Commit drafts of schedules, then cancel the open runs that accepted drafts replace. Raises: StoreError."""
        if not drafts:
            return
        results = await self._batcher.submit_all([draft.change(self._change_id()) for draft in drafts])
        for draft, result in zip(drafts, results, strict=True):
            if draft.cancels_open and result.ok:  # if refused, another instance was first and cancels them
                await self._cancel_older(draft)

    def _settle_due(self, due: Due, known: Mapping[str, tuple[Ms, ...]]) -> list[ScheduleDraft]:
        """Return a draft for each due schedule that can be planned now. `known`: schedule id → fires with a run.

        A schedule that cannot be planned at all is logged and left out. A schedule that was found ahead of its time and
        must not be planned ahead is left out, too; `_soonest` is lowered to its fire time.
        """
        drafts: list[ScheduleDraft] = []
        for row in due.schedules:
            self._run_logger.learn(row.schedule)
            next_at = row.schedule.next_at or 0
            try:
                draft = self._settle(row, max(due.now, next_at), known.get(row.schedule.id, ()))
            except Exception:  # for example a zone this machine does not know: go on with the other schedules
                self._log_unplannable(row.schedule)
                continue
            if next_at > due.now and not _may_be_early(row, draft):
                self._soonest = min(self._soonest, next_at)
            else:
                drafts.append(draft)
        return drafts

    @property
    def unplannable(self) -> frozenset[str]:
        """Ids of the schedules that could not be planned here, including those that have been planned since."""
        return frozenset(self._unplannable)

    def _log_unplannable(self, schedule: Schedule) -> None:
        """Log the exception being handled, unless that was done for this schedule in the last 10 minutes."""
        now = self._clock.monotonic()
        if now >= self._unplannable.get(schedule.id, now):
            self._unplannable[schedule.id] = now + UNPLANNABLE_LOG_SECONDS
            log.exception("schedule %r cannot be planned; planning is tried again periodically", schedule.name)

    async def _seconds_until_steady(self) -> float:
        """Return for how many seconds planning still waits after a step of the wall clock; 0 or less: plan now.

        A new step begins the wait, because the clock may soon step back. The step is written to the log and the event
        log.
        """
        step = self._clock.now() - self._clock.boot() - self._wall_offset
        if abs(step) >= MIN_CLOCK_STEP_MS:
            log.warning(
                "the wall clock of this machine stepped by %d s; planning waits %g s", step // 1000, STEADY_SECONDS
            )
            self._wall_offset += step
            self._steady_from = self._clock.monotonic() + STEADY_SECONDS
            self._on_clock_step()
            event = ClockStepped(step_ms=step)
            await self._batcher.submit(Change(id=self._change_id(), events=(event,)))
        return self._steady_from - self._clock.monotonic()

    def _settle(self, row: DueSchedule, now: Ms, known: tuple[Ms, ...]) -> ScheduleDraft:
        """Return a draft that resumes a due schedule if its pause is over, and else settles its fires up to `now`.

        A draft that settles also deletes the schedule if it is over and is to be deleted then (`_delete_if_terminal`).
        """
        schedule = row.schedule
        if schedule.state == "paused":
            return resume(schedule, now, reason="until", known=known)
        draft = settle(schedule, _open_runs(row, self._ending, self._is_unserved, known=known), now)
        self._delete_if_terminal(draft, row.open)
        return draft

    @staticmethod
    def _delete_if_terminal(draft: ScheduleDraft, open_runs: int) -> None:
        """Add the deletion of the schedule to `draft` if it is finished, has `terminal="delete"`, and has no open run.

        `open_runs`: number of its stored runs that are open. New runs in the draft count as well.
        """
        schedule = draft.schedule
        ended = schedule.state == "finished" and schedule.spec.terminal == "delete"
        if ended and open_runs == 0 and not any(run.state in OPEN for run in draft.runs):
            for event in delete(schedule, OpenRuns(), schedule.cursor, reason="finished").events:
                draft.emit(event)

    # ── touched schedules ──────────────────────────────────────────────────

    async def update_touched(self) -> float:
        """Commit what touched schedules need: a next fire (fixed delay, damaged row), a pause, a deletion, or nothing.

        Of those that are deleted, cancel one batch of waiting runs each.

        Each commit clears the touch that was read. A schedule that must wait for its open runs keeps its touch. Return
        the seconds until the next call. Raises: StoreError.
        """
        due = await self._store.due(Agenda.TOUCHED, DUE_BATCH_ROWS)
        for row in due.schedules:
            if row.schedule.state == "deleted":
                self._deletions.add(row)
                continue
            if await self._must_wait_for_open_runs(row):
                continue  # the touch stays, so that the store returns this schedule again when the hold ends
            draft = await self._draft_touched(row, due.now)
            if draft is None:
                continue
            result = await self._batcher.submit(draft.change(self._change_id(), touched=row.touched))
            if result.ok and row.schedule.state == "active" and draft.schedule.state == "paused":
                log_automatic_pause(row.schedule, draft.schedule.reason or "")
        more = await self._deletions.step(due.now)
        return 0.0 if more or len(due.schedules) >= DUE_BATCH_ROWS else self.poll

    async def _must_wait_for_open_runs(self, row: DueSchedule) -> bool:
        """Return True if the touch of a finished schedule must stay, because the ends of its runs will not touch it.

        That is so if the schedule is to be deleted after its open runs (`terminal="delete"`), and none of them was made
        to touch it at its end (`rearm`): they are of an earlier revision, which did not ask for the deletion.
        """
        schedule = row.schedule
        if row.open == 0 or schedule.spec.terminal != "delete" or schedule.state != "finished":
            return False
        found = await self._store.find(Runs(schedule_id=schedule.id, states=tuple(OPEN), limit=1_000))
        return not any(run.options is not None and run.options.rearm for run in found)

    async def _draft_touched(self, row: DueSchedule, now: Ms) -> ScheduleDraft | None:
        """Return the draft of what a touched schedule needs; None if an open run must end first, so the touch stays.

        The draft pauses the schedule, sets its next fire after a fixed delay, plans it because its row is damaged, or
        deletes it because it is over. If nothing is to be done, the draft is empty, and its change only clears the
        touch. `now`: the store's time.
        """
        schedule = row.schedule
        last = await self._find_newest_run(schedule.id, ENDED - {State.SKIPPED})
        known = await find_known_fires(self._store, schedule, now)
        if schedule.state == "active" and (reason := _reason_to_pause(schedule, last, now)) is not None:
            return pause(schedule, _open_runs(row, known=known), now, reason=reason)
        draft = ScheduleDraft(schedule)
        if is_fixed_delay(schedule.spec):
            if row.open and schedule.state == "active":
                # A run of an earlier revision would not touch the schedule when it ends. And no event distinguishes a
                # next fire from none, so a write that changes nothing could undo a next fire that another instance set.
                return None
            if row.open == 0:
                skipped = await self._find_newest_run(schedule.id, frozenset({State.SKIPPED}))
                ends = [run.ended_at for run in (last, skipped) if run is not None and run.ended_at is not None]
                draft = rearm(schedule, min(now, max(ends, default=now)))  # a wrong clock may have ended a run later
        elif schedule.state == "active" and schedule.next_at is None:
            draft = settle(schedule, _open_runs(row, known=known), now)  # a damaged row, which `Keeper.repair` touched
        self._delete_if_terminal(draft, row.open)
        return draft

    async def _find_newest_run(self, schedule_id: str, states: frozenset[State]) -> Run | None:
        """Return the newest run of a schedule in one of `states`; None if there is none.

        Callers ask for skipped runs separately: a run that was skipped while an older run was open would hide the
        older run.
        """
        found = await self._store.find(Runs(schedule_id=schedule_id, states=tuple(states), limit=1))
        return found[0] if found else None

    # ── leases that ended ──────────────────────────────────────────────────

    async def rescue(self) -> float:
        """Make running runs whose lease expired claimable again, commit that, and log each run that was changed.

        A run ends instead if its crash budget is spent, if its cancellation was requested, or if it must not be
        executed again. Return the seconds until the next lease expires; 0 if more may have expired. Raises: StoreError.
        """
        due = await self._store.due(Agenda.EXPIRED, DUE_BATCH_ROWS)
        self._observe_store_time(due.now)
        if due.runs:
            changes = [self._expire(run, due.now) for run in due.runs]
            results = await self._batcher.submit_all(changes)
            for run, change, result in zip(due.runs, changes, results, strict=True):
                if result.ok and change.run is not None:  # if refused, another instance was first and logs it
                    log_rescue(self._run_logger, run, change.run.state)
        return 0.0 if len(due.runs) >= DUE_BATCH_ROWS else self._seconds_until_due(due)

    def _expire(self, run: Run, now: Ms) -> Change:
        """Return the change that makes a run whose lease expired claimable or ends it. `now`: store time.

        Crash budget and recovery are those of the run's options, else those of its handler here, else the defaults.
        """
        handler = self._handlers.get(run.task)
        recovery = run.options.recovery if run.options else None
        crashes = run.options.max_crashes if run.options else None
        command = Expire(
            max_crashes=crashes or (handler.max_crashes if handler else _max_crashes(run.task)),
            recovery=recovery or (handler.recovery if handler else "retry"),
        )
        events = decide(run, command, now)
        after = evolve(run, events[0])
        return Change(
            id=self._change_id(),
            guard=RunLease(run.id, run.epoch),
            run=after,
            events=events,
            releases=run.gates,
            touches=schedules_to_touch(after),
        )

    # ── gates with room ────────────────────────────────────────────────────

    async def unpark_runs(self) -> float:
        """Let the store unpark runs at gates with room; if it did, call `on_unparked`. Return the seconds to wait."""
        due = await self._store.due(Agenda.GATES, DUE_BATCH_ROWS)
        self._idle_gate_checks = 0 if due.unparked else self._idle_gate_checks + 1
        if due.unparked:
            self._on_unparked()
        return 0.0 if due.unparked >= DUE_BATCH_ROWS else self.poll

    def _seconds_until_due(self, due: Due) -> float:
        """Return the seconds until the next row is due, by the store's answer; the poll interval if none is known."""
        return self.poll if due.next_at is None else max(0.0, (due.next_at - due.now) / 1000)


def _reason_to_pause(schedule: Schedule, last: Run | None, now: Ms) -> str | None:
    """Return why the engine must pause a schedule; None if it need not.

    It must if the last run failed for good, with `on_exhausted="pause"` or because the HTTP agent is gone. A run that
    ended before the schedule was last changed does not count. `last`: the newest run that ended and was not skipped;
    None: there is none.
    """
    if last is None or last.state is not State.FAILED or not last.dead:
        return None
    if (last.ended_at or 0) < schedule.updated_at:  # a failure from before a resume does not count
        return None
    if (last.ended_at or 0) > now and schedule.rewound is not None:  # nor does one from before a rewind
        return None
    options = schedule.spec.options
    if options is not None and options.on_exhausted == "pause":
        return "retries_exhausted"
    return f"gone: {last.error}"[:500] if last.reason == AGENT_GONE else None


def _max_crashes(task: str) -> int:
    """Return the crash budget of a task that has no handler here."""
    return MAX_CALL_CRASHES if task == HTTP_TASK else 3


def _may_be_early(row: DueSchedule, draft: ScheduleDraft) -> bool:
    """Return True if the draft may be committed before the time of its fires.

    It may if the schedule has no open run and each fire becomes a run: then no end of a run can change the decision.
    """
    fires = row.open == 0 and row.schedule.state == "active" and draft.schedule.state == "active"
    return fires and not draft.spans and all(run.state is State.WAITING for run in draft.runs)


def _open_runs(
    row: DueSchedule,
    ending: Container[str] = (),
    is_unserved: Callable[[str, str], bool] = lambda task, lane: False,
    *,
    known: tuple[Ms, ...] = (),
) -> OpenRuns:
    """Return the counts of a schedule's open runs. Its two oldest runs count as ended if their ids are in `ending`.

    `ending`: ids of runs whose end is committed no later than the fires to be settled. If the store refuses such an
    end, the schedule's gate still holds the new run back. `is_unserved(task, lane)`: as for `Settler`.
    `known`: times of fires after the cursor that have a run from before a rewind.
    """
    open_still = [run for run in row.oldest if run.id not in ending]
    over = len(row.oldest) - len(open_still)
    if not open_still:
        return OpenRuns(row.open - over, row.waiting, known=known)
    oldest = open_still[0]
    unserved = oldest.state in CLAIMABLE and is_unserved(oldest.task, oldest.lane)
    return OpenRuns(row.open - over, row.waiting, oldest.id, unserved, known)
