"""The worker: claims due runs for free slots, keeps their leases alive, and hands outcomes to the recorder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from mainspring.engine.commit.batcher import EventSink
from mainspring.engine.lease_trust import LEASE_TRUST_RATIO
from mainspring.engine.lookahead import Lookahead
from mainspring.engine.loop import Loop
from mainspring.engine.store_clock import StoreClock
from mainspring.engine.work.claimed_run import (
    is_last_chance,
    is_sole_crashed_run,
    must_not_wait,
    skip_outcome,
    started_event,
)
from mainspring.engine.work.early_claims import EarlyClaims
from mainspring.engine.work.heartbeat import Heartbeat
from mainspring.engine.work.hint_inbox import HintInbox
from mainspring.engine.work.outcome_inbox import OutcomeInbox
from mainspring.engine.work.prefetch import Prefetch
from mainspring.engine.work.recorder import Recorder
from mainspring.engine.work.slots import Slots
from mainspring.engine.work.stopping import stop_attempts
from mainspring.engine.work.waiting_runs import WaitingRuns
from mainspring.model.change import Change
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, Cancelled, HandedBack, Outcome
from mainspring.model.run import CLAIMABLE
from mainspring.model.settings import Settings
from mainspring.ports.executor import Attempt, Executor, Handler, HeldRun, Kind
from mainspring.ports.store import Claim, Claimed, ClaimRequest, Offer, Store
from mainspring.rules.lanes import lane_of

log = logging.getLogger("mainspring.engine")

#: The most runs of one claim; if half of the worker's slots are more than this, half of the slots is the limit.
MAX_CLAIM_BATCH = 100
#: The most claimed runs that wait in an executor's own queue. Few: another instance may have a free slot for them.
MAX_EXECUTOR_QUEUE = 16
#: A claimed run that found no slot for this many seconds is handed back, so that another instance may claim it.
NO_SLOT_SECONDS = 1.0


class Worker(Loop):
    """Claims due runs, gives them to executors as slots become free, and records their outcomes. Thread: engine loop.

    The executors run the handlers, on other threads or loops, and put the outcomes into the inbox `outcomes`. Claimed
    runs without a slot wait in the local queue. A shared claim is one that the batcher makes in a commit of changes.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        recorder: Recorder,
        clock: StoreClock,
        settings: Settings,
        owner: str,
        handlers: Mapping[str, Handler],
        executors: Mapping[Kind, Executor],
        publisher: EventSink,
        post: Callable[[Callable[[], None]], None],
        *,
        heartbeat_name: str = "heartbeat",
        waits_for_handlers: bool = False,
        under_way: Callable[[], int] | None = None,
    ) -> None:
        """Make a worker that claims under the name `owner`. `publisher` receives a `RunStarted` event for each claim.

        `handlers`: task name → handler. `executors`: kind of handler → executor; the caller fills it before `start`.
        `post` calls a function on the engine loop soon, from any thread. `under_way`, if the executor has its own
        queue: returns how many attempts run outside it. `name`, `heartbeat_name`: names in the log of the two loops.
        `waits_for_handlers`: `hand_back` keeps the runs of handlers that do not stop.
        """
        super().__init__(settings.poll / 1000)
        self.name = name
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self._handlers = handlers
        self._executors = executors
        self._publisher = publisher
        #: Every run this worker holds a lease on, by run id: given to an executor, or waiting for a slot.
        self.running: dict[str, HeldRun] = {}
        #: Earlier attempts that still run although their lease was lost and this worker claimed the run again.
        self._superseded: set[HeldRun] = set()
        #: True if the local queue may hold a run that must start at once or be handed back (`must_not_wait`).
        self._may_have_urgent = False
        self.slots = Slots(settings.concurrency)
        self._waiting = WaitingRuns()
        self._prefetch = Prefetch(clock, settings.pace / 1000)
        self.outcomes = OutcomeInbox(self.slots, post, self.finished)
        self.early = EarlyClaims(clock, self.outcomes, self._has_free_slot, self._begin_early)
        self._lookahead = Lookahead(clock)
        self._max_claim = max(MAX_CLAIM_BATCH, settings.concurrency // 2)
        #: Runs whose next crash would be their last.
        self._last_chances: set[str] = set()
        #: True if the last claim brought as many runs as it asked for.
        self._was_claim_full = True
        #: True if the store may hold more runs that are due: then a slot that becomes free is a reason to claim.
        self._may_be_more = True
        #: The last shared claim: the number of runs it asked for, and when, in boot time and in monotonic seconds.
        self._shared_claim: tuple[int, Ms, float] = (0, 0, 0.0)
        self._next_claim_at = 0.0
        #: True while a claim is under way.
        self.claiming = False
        #: True if `run_once` made no claim because a shared claim was under way.
        self._was_held_up = False
        #: Number of claims that ended, with an answer or an error.
        self.claims = 0
        #: True once the worker stops: it claims and begins no further runs.
        self.draining = False
        #: True once a drain under way shall no longer wait for attempts.
        self._is_aborted = False
        self.waits_for_handlers = waits_for_handlers
        #: Kinds of handlers that cannot begin now: their runs are not claimed here.
        self._closed_kinds: frozenset[Kind] = frozenset()
        self._under_way = under_way
        #: Set while no run is held.
        self.idle = asyncio.Event()
        #: The runs that messages of the broker named; None while the worker claims without a broker.
        self._hints: HintInbox | None = None
        interval, ttl = settings.heartbeat / 1000, settings.lease_ttl
        self.heart = Heartbeat(
            heartbeat_name, self, store, recorder, clock, owner, handlers, interval=interval, lease_ttl=ttl
        )

    # ── what this worker may claim ─────────────────────────────────────────

    def attach_hints(self, hints: HintInbox) -> None:
        """From now on, also claim the runs that the broker's messages in `hints` name."""
        self._hints = hints

    def detach_hints(self) -> None:
        """Undo `attach_hints`: claim without the broker's messages again."""
        self._hints = None

    def close_kinds(self, kinds: frozenset[Kind]) -> None:
        """Claim no runs whose handler is of one of these kinds, until `open_kinds`: such a run could not begin here."""
        self._closed_kinds = kinds

    def open_kinds(self) -> None:
        """Undo `close_kinds`: claim runs of every kind of handler again, beginning now."""
        self._closed_kinds = frozenset()
        self.wake()

    def stop_claiming(self) -> None:
        """Claim and begin no further runs; attempts that run go on."""
        self.draining = True

    # ── claiming ───────────────────────────────────────────────────────────

    async def run_once(self) -> float:
        """Claim runs for the free slots and the local queue, and begin them. Return the seconds until the next claim.

        First hand back runs that waited too long for a slot. Make no claim while a shared claim is under way, or if no
        run can be taken or begun here now. Raises: StoreError.
        """
        self._hand_back_waiting()
        if self.outcomes.is_deferring:
            self.outcomes.drain()  # ended attempts make room, and their number is the rate that prefetching needs
        self._may_be_more = True
        self._next_claim_at = self._clock.monotonic() + self.poll
        if self.claiming:  # a shared claim: the slots and the search for strays allow only one claim at a time
            self._was_held_up = True
            return self.poll
        wanted = self._wanted()
        if wanted <= 0:
            return self.poll
        offer = self._offer()
        if not offer.tasks:
            return self.poll
        sent, began = self._clock.boot(), self._clock.monotonic()  # before the claim: its leases are trusted from then
        named = () if self._hints is None else self._hints.names_to_claim(began)
        self.claiming = True
        try:
            claimed = await self._store.claim(offer, wanted, ids=named)
        finally:
            self.claiming = False
            self.claims += 1
        delay = min(self.poll, self._handle_claim_answer(claimed, wanted, sent, began))
        if self._hints is not None and self._hints.claim_answered(named, claimed, wanted):
            self._may_be_more, delay = True, 0.0
        self._next_claim_at = self._clock.monotonic() + delay
        return delay

    def _handle_claim_answer(self, claimed: Claimed, wanted: int, sent: Ms, began: float) -> float:
        """Hold and begin the runs that a claim for `wanted` runs brought. Return the seconds until there may be more.

        `sent` and `began`: when the claim was sent, in boot time and in monotonic seconds.
        """
        self._prefetch.answered(began)
        self._clock.observe(claimed.now)
        self._was_claim_full = len(claimed.claims) == wanted
        # Set before the runs are begun: `finished`, which may be called meanwhile, reads it.
        self._may_be_more = self._was_claim_full or is_sole_crashed_run(claimed)
        if claimed.claims:
            self._take_claimed_runs(claimed, sent)
        if self.running or claimed.claims:
            self.idle.clear()
        else:
            self.idle.set()
        self._lookahead.count(len(claimed.claims))
        if self._may_be_more:
            return 0.0
        if claimed.next_at is None:
            return self.poll
        return max(0.0, (self._lookahead.next_query_at(claimed.now, claimed.next_at) - claimed.now) / 1000)

    def claim_request(self, changes: Sequence[Change]) -> ClaimRequest | None:
        """Return a claim to make in the commit of `changes`; None if this worker cannot claim now or expects no runs.

        The batcher calls this before a commit, and afterwards `claim_result` once for each claim returned.
        """
        if self._task is None or self.claiming or not (self._may_be_more or self._brings_work(changes)):
            return None
        wanted = self._wanted()
        if wanted <= 0:
            return None
        offer = self._offer()
        if not offer.tasks:
            return None
        self._shared_claim = (wanted, self._clock.boot(), self._clock.monotonic())
        self.claiming = True
        return ClaimRequest(offer, wanted)

    def claim_result(self, claimed: Claimed | None) -> None:
        """Begin the runs of a shared claim, or hand them back if stopping. None: no claim made, or result unknown."""
        self.claiming = False
        self.claims += 1
        if self._was_held_up or claimed is None:
            self._was_held_up = False
            self.wake()
        if claimed is None:
            return
        delay = self._handle_claim_answer(claimed, *self._shared_claim)
        if self.draining:  # the claim was under way when the worker began to stop
            self._hand_back_all_unbegun()
        if self._clock.monotonic() + delay < self._next_claim_at:
            self.wake()

    def _brings_work(self, changes: Sequence[Change]) -> bool:
        """Return True if one of the changes makes a run claimable, now or soon, whose task has a handler here."""
        now, known = self._clock.now() + self._claim_ahead_ms(), self._handlers
        for change in changes:
            run = change.run
            if run is not None and run.state in CLAIMABLE and run.ready_at <= now and run.task in known:
                return True
            if any(new.state in CLAIMABLE and new.ready_at <= now and new.task in known for new in change.runs):
                return True
        return False

    def _wanted(self) -> int:
        """Return how many runs to claim at most: for free slots and for the local queue. Zero or less: make no claim.

        Zero while a run is held whose next crash would end it: a crash would count for the runs claimed now, too.
        """
        slots = self._settings.concurrency
        if self.draining or not self._handlers or self._last_chances or self.slots.taken >= slots:
            return 0
        if self._under_way is not None:
            waiting = len(self.running) - self._under_way()
            return min(slots - len(self.running), MAX_EXECUTOR_QUEUE - waiting)
        if self._has_at_most_once_task():
            return min(slots - len(self.running), self._max_claim)
        places = self._prefetch.queue_size(slots) + self._prefetch.expected_ends(self._claim_ahead_ms() / 1000)
        return min(slots + places - len(self.running), self._max_claim)

    def _has_at_most_once_task(self) -> bool:
        """Return True if a task here has `recovery="fail"`. Its runs must not wait here: a crash would end them."""
        return any(handler.recovery == "fail" for handler in self._handlers.values())

    def _claim_ahead_ms(self) -> Ms:
        """Return how many milliseconds ahead of their time to claim runs; 0: claim only runs that are due.

        0 if runs are rare or too many for the slots, before a measurement, with a broker, agents, an at-most-once task.
        """
        if self._was_claim_full or self._waiting or self._hints is not None or self._under_way is not None:
            return 0
        if not self._prefetch.is_measured:  # runs claimed ahead would take every place in the local queue
            return 0
        return min(self._lookahead.ms, self._settings.lease_ttl // 4) if not self._has_at_most_once_task() else 0

    def _offer(self) -> Offer:
        """Return what a claim of this worker may bring: its lanes, and the tasks that can begin here now."""
        lanes = tuple(lane_of(self._settings.namespace, queue) for queue in self._settings.queues)
        tasks = tuple(self._handlers)
        if self._closed_kinds:
            tasks = tuple(name for name in tasks if self._handlers[name].kind not in self._closed_kinds)
        return Offer(self._owner, lanes, tasks, self._settings.lease_ttl, self._claim_ahead_ms())

    # ── beginning, and handing back what has not begun ─────────────────────

    def _take_claimed_runs(self, claimed: Claimed, sent: Ms) -> None:
        """Hold the claimed runs, and begin, queue or end each of them. `sent`: when the claim was sent (boot time).

        If an earlier attempt of a run is still held here, stop it: its lease was lost.
        """
        trust = sent + int(self._settings.lease_ttl * LEASE_TRUST_RATIO)
        now = self._clock.monotonic()
        running = self.running
        has_listeners = self._publisher.has_listeners
        for claim in claimed.claims:
            run = claim.run
            held = self._hold(claim, trust)
            if has_listeners:
                self._publisher.publish(started_event(run))
            skipped = None if run.options is None else skip_outcome(run, run.options, run.started_at or claimed.now)
            before = running.get(run.id)
            if before is not None:  # its lease was lost and claimed again: the earlier attempt must not go on
                self.stop_attempt(before, HandedBack("lease_lost", began=before.execution.began_at is not None))
                self._release(before)
                self._superseded.add(before)
            running[run.id] = held
            if run.crashes and is_last_chance(held.attempt):
                self._last_chances.add(run.id)
            if skipped is not None:
                self._end(held, skipped)
            elif run.cancel is not None:
                self._end(held, Cancelled(run.cancel))
            elif run.ready_at > claimed.now:
                self.early.add(held)
            else:
                self._waiting.add(held, now)
        self._begin()
        if not self.early.is_empty:
            self.early.dispatch_due()

    def _hold(self, claim: Claim, trust: Ms) -> HeldRun:
        """Make the held run of a claim, with its attempt, and return it. `trust`: its trust deadline, in boot time."""
        run = claim.run
        handler, options = self._handlers[run.task], run.options
        timeout = handler.timeout if options is None or options.timeout is None else options.timeout
        attempt = Attempt(run, claim.body, handler, timeout or None)
        if run.crashes or attempt.at_most_once:
            self._may_have_urgent = True
        return HeldRun(attempt, trust)

    def _has_free_slot(self) -> bool | None:
        """Return True if a slot is free, else False; None (defer nothing) if runs wait for one or the worker stops."""
        return None if self._waiting or self.draining else self.slots.taken < self.slots.total

    def _begin_early(self, due: Sequence[HeldRun], soon: Sequence[HeldRun]) -> None:
        """Begin runs claimed ahead: `due` now, as slots are free; `soon` at their time, on the handlers' loop."""
        now = self._clock.monotonic()
        for held in due:
            self._may_have_urgent = True
            self._waiting.add(held, now)
        if due:
            self._begin()
        if soon:
            self._executors["async"].start(soon)

    def queue_for_slot(self, held: HeldRun) -> None:
        """Queue a run claimed ahead, if still held here: no slot was free when its time came on the handlers' loop."""
        if self.running.get(held.attempt.run.id) is held:
            held.starts_at = None
            self._begin_early((held,), ())

    def _begin(self) -> None:
        """Give waiting runs to executors as slots are free, most urgent first. Hand back others that must not wait."""
        starts: dict[Kind, list[HeldRun]] = {}
        while self._waiting and not self.draining:
            held = self._waiting.first()
            if not held.is_done:
                if not self.slots.take(held):
                    break
                starts.setdefault(held.attempt.handler.kind, []).append(held)
            self._waiting.remove_first()
        if self._waiting:
            self.outcomes.set_deferring(deferring=False)
        for kind, held_runs in starts.items():
            self._executors[kind].start(held_runs)
        if self._waiting and self._may_have_urgent:
            self._may_have_urgent = False
            self._hand_back_unbegun([held for held in self._waiting.all() if must_not_wait(held)])

    def _hand_back_waiting(self, after: float = NO_SLOT_SECONDS) -> None:
        """Hand back the runs that have waited for a slot for `after` seconds or longer."""
        if self._waiting:
            self._hand_back_unbegun(self._waiting.waiting_since(self._clock.monotonic() - after))
            self._waiting.remove_done()

    def _hand_back_all_unbegun(self) -> None:
        """Hand back every run without a slot: in the local queue, or claimed ahead, even if the executor has it."""
        handed_over = [held for held in self.running.values() if held.starts_at is not None]
        for held in [*self.early.remove_all(), *handed_over]:
            if self.running.get(held.attempt.run.id) is held and self.slots.withhold(held):
                self._end(held, HandedBack("not_begun"))
        self._hand_back_waiting(after=0.0)

    def _hand_back_unbegun(self, held_runs: Sequence[HeldRun]) -> None:
        """Hand back runs of the local queue, so that another instance may claim them."""
        for held in held_runs:
            self._end(held, HandedBack("not_begun"))

    # ── outcomes ───────────────────────────────────────────────────────────

    def finished(self, done: Sequence[tuple[HeldRun, Outcome]]) -> None:
        """Record the outcomes of attempts, or report them as stale; begin waiting runs; claim if more may be due."""
        boot, now = self._clock.boot(), self._clock.now()
        for held, outcome in done:
            if self.running.get(held.attempt.run.id) is held:
                self._end(held, outcome, boot, now)
            elif held in self._superseded:
                self._superseded.discard(held)
                self._recorder.report_stale_outcome(held, outcome)
        self._prefetch.finished(len(done))
        self._begin()
        if self._may_be_more and not self._waiting:  # else the commit of these outcomes brings more in time
            self.wake()

    def _end(self, held: HeldRun, outcome: Outcome, boot: Ms | None = None, now: Ms | None = None) -> None:
        """Stop holding a run and record its outcome. `boot`, `now`: the present boot and store time, if known.

        After the trust deadline, the lease must be renewed first. `Accepted` leaves the run to its HTTP agent instead.
        """
        del self.running[held.attempt.run.id]
        self._release(held)
        if not self.running:
            self.idle.set()
        if type(outcome) is Accepted:
            self.heart.hand_over(held, outcome)
        elif (self._clock.boot() if boot is None else boot) < held.lease_trusted_until:
            self._recorder.record(held, outcome, now)
        else:
            self.heart.record_after_renewal(held, outcome)

    def _release(self, held: HeldRun) -> None:
        """Set `is_done` of a run, cancel the timer of its time-out, and release its slot."""
        held.is_done = True
        timer = held.execution.timer
        if timer is not None:
            timer.cancel()
        self.slots.leave(held)
        if self._last_chances:
            self._last_chances.discard(held.attempt.run.id)

    # ── stopping ───────────────────────────────────────────────────────────

    def cancel(self, run_id: str, reason: str) -> None:
        """Stop the attempt of a run; it ends as cancelled for `reason`. Ignore a run not held, or stopping already."""
        held = self.running.get(run_id)
        if held is not None and held.stop is None:
            self.stop_attempt(held, Cancelled(reason))

    def stop_attempt(self, held: HeldRun, why: Outcome) -> None:
        """End an attempt with the outcome `why`: at once if it has no slot, else by asking its executor to stop it."""
        held.request_stop(why)
        if held.starts_at is not None:
            self.outcomes.drain()  # the attempt may have ended
        if self.running.get(held.attempt.run.id) is not held:
            return
        if self.slots.withhold(held):
            self._end(held, why)
        else:
            self._executors[held.attempt.handler.kind].stop(held)

    async def drain(self, timeout: float) -> None:
        """Stop this worker: hand back what has not begun, allow attempts `timeout` seconds, then hand back the rest."""
        self.stop_claiming()
        self._hand_back_all_unbegun()
        await self.stop()
        try:
            async with asyncio.timeout(timeout):
                while self.running and not self._is_aborted:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            await self.hand_back("shutdown")
        with contextlib.suppress(StoreError):  # the leases then keep the length they have
            await self.heart.renew_handed_over()

    async def abort(self, reason: str) -> None:
        """Stop this worker at once, and hand back its runs for `reason`. A `drain` that is under way then ends."""
        self.stop_claiming()
        self._is_aborted = True
        await self.stop()
        await self.hand_back(reason)
        self.idle.set()

    async def hand_back(self, reason: str) -> None:
        """Stop every attempt as `stop_attempts` does, for `reason`, and wait until the outcomes are stored."""
        await stop_attempts(self, reason, lambda: self._executors["process"].close())
        await self._recorder.drain()

    def let_go(self, held: HeldRun, outcome: Outcome) -> None:
        """Wait no longer for a handler: record `outcome`, and ignore what the handler returns later."""
        held.abandon()
        self._end(held, outcome)
