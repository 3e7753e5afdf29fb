"""The worker: claims what is due into free slots, keeps the leases alive, hands outcomes to the recorder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from mainspring.engine.early import Early
from mainspring.engine.heart import TRUST, Heart
from mainspring.engine.inbox import Inbox
from mainspring.engine.lookahead import Lookahead
from mainspring.engine.prefetch import Prefetch
from mainspring.engine.recorder import Recorder
from mainspring.engine.service import Service
from mainspring.engine.slots import Slots
from mainspring.model.change import Change
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, RunStarted
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, Cancelled, HandedBack, Outcome, Skipped
from mainspring.model.policies import RunOptions
from mainspring.model.run import CLAIMABLE, Run
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Executor, Handler, Kind
from mainspring.ports.store import Claim, Claimed, Offer, Store, Wish
from mainspring.rules.lanes import lane_of
from mainspring.rules.windows import is_open

log = logging.getLogger("mainspring.engine")

CLAIM_BATCH = 100
#: So many may wait in an executor that deals out turns itself: a moment's work, so that others need not wait long.
QUEUE = 16
#: A claimed run that found no slot for so many seconds goes back, so that another instance may take it.
NOT_BEGUN = 1.0


class Worker(Service):
    """Runs on the engine's loop; handlers run elsewhere and come back through `finished`."""

    name = "worker"

    def __init__(
        self,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
        owner: str,
        handlers: Mapping[str, Handler],
        executors: Mapping[Kind, Executor],
        publish: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(settings.poll / 1000)
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self._handlers = handlers
        self._executors = executors
        self.publish = publish
        #: Everything this worker holds a lease on: given to an executor, or waiting for a slot.
        self.running: dict[str, Attempt] = {}
        #: Attempts still under way whose run we lost and claimed again.
        self._superseded: set[Attempt] = set()
        #: Whether something may be among the waiting that must not wait.
        self._impatient = False
        #: Handlers that run now; who waits for its moment on the handlers' loop takes its slot there.
        self.slots = Slots(settings.concurrency)
        self._waiting: list[tuple[int, int, float, Attempt]] = []
        self._taken = 0
        self._prefetch = Prefetch(clock, settings.pace / 1000)
        #: Told the store's now at each claim.
        self.heard: Callable[[Ms], None] = lambda now: None
        #: Takes what executors have said has ended, and has not reached us yet.
        self.hear: Callable[[], None] = lambda: None
        self.early = Early(clock, lambda: self.hear(), self._spare, self._begin_early)
        self._lookahead = Lookahead(clock)
        self._left_behind = True
        self._batch = max(CLAIM_BATCH, settings.concurrency // 2)
        self._last_chances: set[str] = set()
        self._riding: tuple[int, Ms, float] = (0, 0, 0.0)
        self._looks_at = 0.0
        #: Whether the last claim left something behind, as far as we know: then a free slot is a reason to look.
        self._more = True
        self.draining = False
        #: Kinds of handlers that cannot begin now, so their runs are left to others.
        self.closed: frozenset[Kind] = frozenset()
        self.claiming = False
        self._held_up = False
        self.claims = 0
        #: How many of ours are really under way, where an executor has a queue of its own.
        self.under_way: Callable[[], int] | None = None
        self.idle = asyncio.Event()
        #: Runs that a broker's messages named.
        self.inbox: Inbox | None = None
        self.heart = Heart(self, settings.heartbeat / 1000)

    # ── claiming ───────────────────────────────────────────────────────────

    async def run_once(self) -> float:
        """Claim into the free slots and a little ahead of them.

        1. Note the boot time: trust in the leases counts from before the claim was sent.
        2. Claim at most as many runs as there are free slots and places in the local queue.
        3. Consume those outside their window or too late; begin the rest as slots are free.
        """
        self._give_up_waiting()
        if self.early.hears:
            self.hear()  # what has ended counts: it makes room, and tells how quickly runs end here
        self._more = True
        self._looks_at = self._clock.monotonic() + self.poll
        if self.claiming:  # one rides along with a commit; two at once could not be told apart, nor kept to the slots
            self._held_up = True
            return self.poll
        wanted = self._wanted()
        if wanted <= 0:
            return self.poll
        offer = self._offer()
        if not offer.tasks:
            return self.poll
        sent, began = self._clock.boot(), self._clock.monotonic()
        named = () if self.inbox is None else self.inbox.ask(began)
        self.claiming = True
        try:
            claimed = await self._store.claim(offer, wanted, ids=named)
        finally:
            self.claiming = False
            self.claims += 1
        delay = min(self.poll, self._claimed(claimed, wanted, sent, began))
        if self.inbox is not None and self.inbox.answered(named, claimed, wanted):
            self._more, delay = True, 0.0
        self._looks_at = self._clock.monotonic() + delay
        return delay

    def _claimed(self, claimed: Claimed, wanted: int, sent: Ms, began: float) -> float:
        """Take what was claimed; the seconds until there may be more."""
        self._prefetch.answered(began)
        self.heard(claimed.now)
        self._left_behind = len(claimed.claims) == wanted
        self._more = self._left_behind or _alone(claimed)  # first: what is heard to have ended asks for it
        if claimed.claims:
            self._take(claimed, sent)
        if self.running or claimed.claims:
            self.idle.clear()
        else:
            self.idle.set()
        self._lookahead.counted(len(claimed.claims))
        if self._more:
            return 0.0
        if claimed.next_at is None:
            return self.poll
        return max(0.0, (self._lookahead.look_at(claimed.now, claimed.next_at) - claimed.now) / 1000)

    # ── claims that ride along with a commit ───────────────────────────────

    def wish(self, changes: Sequence[Change]) -> Wish | None:
        """A claim, if this commit brings work or frees what somebody waits for, and there is room."""
        if self._task is None or self.claiming or not (self._more or self._brings_work(changes)):
            return None
        wanted = self._wanted()
        if wanted <= 0:
            return None
        offer = self._offer()
        if not offer.tasks:
            return None
        self._riding = (wanted, self._clock.boot(), self._clock.monotonic())
        self.claiming = True
        return Wish(offer, wanted)

    def granted(self, claimed: Claimed | None) -> None:
        self.claiming = False
        self.claims += 1
        if self._held_up or claimed is None:
            self._held_up = False
            self.wake()
        if claimed is None:
            return
        delay = self._claimed(claimed, *self._riding)
        if self.draining:  # it was on its way when we began to stop
            self._give_up_waiting(after=0.0)
        if self._clock.monotonic() + delay < self._looks_at:
            self.wake()

    def _brings_work(self, changes: Sequence[Change]) -> bool:
        now, known = self._clock.now() + self._ahead(), self._handlers
        for change in changes:
            run = change.run
            if run is not None and run.state in CLAIMABLE and run.ready_at <= now and run.task in known:
                return True
            if any(new.state in CLAIMABLE and new.ready_at <= now and new.task in known for new in change.runs):
                return True
        return False

    def _wanted(self) -> int:
        """How many runs to ask for; none beside a run on its last chance, whose crash would be blamed on them."""
        slots = self._settings.concurrency
        if self.draining or not self._handlers or self._last_chances or self.slots.taken >= slots:
            return 0
        if self.under_way is not None:
            waiting = len(self.running) - self.under_way()
            return min(slots - len(self.running), QUEUE - waiting)
        if self._careful():
            return min(slots - len(self.running), self._batch)
        places = self._prefetch.places(slots) + self._prefetch.during(self._ahead() / 1000)
        return min(slots + places - len(self.running), self._batch)

    def _careful(self) -> bool:
        """True when a run must not be held here before it begins."""
        return any(handler.recovery == "fail" for handler in self._handlers.values())

    def _ahead(self) -> Ms:
        """How far ahead of their time runs are claimed: not at all, unless there are many and none has to wait."""
        if self._left_behind or self._waiting or self.inbox is not None or self.under_way is not None:
            return 0
        if not self._prefetch.knows:  # then what is held would take every slot
            return 0
        return min(self._lookahead.ms, self._settings.lease_ttl // 4) if not self._careful() else 0

    def _offer(self) -> Offer:
        lanes = tuple(lane_of(self._settings.namespace, queue) for queue in self._settings.queues)
        tasks = tuple(self._handlers)
        if self.closed:
            tasks = tuple(name for name in tasks if self._handlers[name].kind not in self.closed)
        return Offer(self._owner, lanes, tasks, self._settings.lease_ttl, self._ahead())

    def _take(self, claimed: Claimed, sent: Ms) -> None:
        trust = sent + int(self._settings.lease_ttl * TRUST)
        now = self._clock.monotonic()
        running, waiting = self.running, self._waiting
        for claim in claimed.claims:
            run = claim.run
            attempt = self._attempt(claim, trust)
            if self.publish is not None:
                self.publish(_started(run))
            refused = None if run.options is None else _not_now(run, run.options, run.started_at or claimed.now)
            before = running.get(run.id)
            if before is not None:  # we lost this run's lease and got it again: the old attempt must not go on
                self.stop_attempt(before, HandedBack("lease_lost", began=before.began_at is not None))
                self._forget(before)
                self._superseded.add(before)
            running[run.id] = attempt
            if run.crashes and attempt.handler.kind != "http" and run.crashes + 1 >= _max_crashes(attempt):
                self._last_chances.add(run.id)
            if refused is not None:
                self._end(attempt, refused)
            elif run.cancel is not None:
                self._end(attempt, Cancelled(run.cancel))
            else:
                self._taken += 1
                if run.ready_at > claimed.now:
                    self.early.hold(attempt)
                else:
                    heappush(waiting, (run.priority, self._taken, now, attempt))
        self._begin()
        if self.early.holds:
            self.early.look()

    def _spare(self) -> bool | None:
        """Whether there are free slots; None when every end must be heard of at once, because others wait for one."""
        return None if self._waiting or self.draining else self.slots.taken < self.slots.total

    def _begin_early(self, ripe: Sequence[Attempt], soon: Sequence[Attempt]) -> None:
        now = self._clock.monotonic()
        for attempt in ripe:
            self._impatient = True
            self._taken += 1
            heappush(self._waiting, (attempt.run.priority, self._taken, now, attempt))
        if ripe:
            self._begin()
        if soon:
            self._executors["async"].start(soon)

    def no_slot(self, attempt: Attempt) -> None:
        """Its time had come on the handlers' loop, and all slots were taken: it waits for one like everybody."""
        if self.running.get(attempt.run.id) is attempt:
            attempt.handed = False
            self._begin_early((attempt,), ())

    def _begin(self) -> None:
        """Give waiting attempts to their executors while slots are free, the most urgent first."""
        starts: dict[Kind, list[Attempt]] = {}
        while self._waiting and not self.draining:
            attempt = self._waiting[0][3]
            if not attempt.done:
                if not self.slots.take(attempt):
                    break
                starts.setdefault(attempt.handler.kind, []).append(attempt)
            heappop(self._waiting)
        if self._waiting:
            self.early.hears = False
        for kind, attempts in starts.items():
            self._executors[kind].start(attempts)
        if self._waiting and self._impatient:
            self._impatient = False
            for *_, attempt in [w for w in self._waiting if _never_waits(w[3])]:
                self._end(attempt, HandedBack("not_begun"))

    def _give_up_waiting(self, after: float = NOT_BEGUN) -> None:
        """Hand back what found no slot."""
        if after == 0.0:
            handed = [attempt for attempt in self.running.values() if attempt.handed]
            for attempt in [*self.early.give_up(), *handed]:
                if self.running.get(attempt.run.id) is attempt and self.slots.withhold(attempt):
                    self._end(attempt, HandedBack("not_begun"))
        if self._waiting:
            latest = self._clock.monotonic() - after
            for _, _, since, attempt in self._waiting:
                if since <= latest and not attempt.done:
                    self._end(attempt, HandedBack("not_begun"))
            self._waiting = [w for w in self._waiting if not w[3].done]
            heapify(self._waiting)

    def _attempt(self, claim: Claim, trust: Ms) -> Attempt:
        run = claim.run
        handler, options = self._handlers[run.task], run.options
        timeout = handler.timeout
        if options is not None:
            timeout = timeout if options.timeout is None else options.timeout
        attempt = Attempt(run, claim.body, handler, timeout or None, trust)
        if run.crashes or attempt.at_most_once:
            self._impatient = True
        return attempt

    # ── outcomes ───────────────────────────────────────────────────────────

    def finished(self, done: Sequence[tuple[Attempt, Outcome]]) -> None:
        """Attempts ended; called on the engine's loop."""
        boot, now = self._clock.boot(), self._clock.now()
        for attempt, outcome in done:
            if self.running.get(attempt.run.id) is attempt:
                self._end(attempt, outcome, boot, now)
            elif attempt in self._superseded:
                self._superseded.discard(attempt)
                self._recorder.stale(attempt, outcome)
        self._prefetch.finished(len(done))
        self._begin()
        if self._more and not self._waiting:  # else the commit of these outcomes brings more in time
            self.wake()

    def _end(self, attempt: Attempt, outcome: Outcome, boot: Ms | None = None, now: Ms | None = None) -> None:
        del self.running[attempt.run.id]
        self._forget(attempt)
        if not self.running:
            self.idle.set()
        if type(outcome) is Accepted:
            self.heart.pass_on(attempt, outcome)
        elif (self._clock.boot() if boot is None else boot) < attempt.trust:
            self._recorder.record(attempt, outcome, now)
        else:
            self._recorder.unstored[attempt.run.id] = attempt  # so that no heartbeat takes it for a stray
            task = asyncio.get_running_loop().create_task(self._record_after_renewal(attempt, outcome))
            self.heart.tasks.add(task)
            task.add_done_callback(self.heart.tasks.discard)

    def _forget(self, attempt: Attempt) -> None:
        """Free what an attempt held here."""
        attempt.done = True
        if attempt.timer is not None:
            attempt.timer.cancel()
        self.slots.leave(attempt)
        if self._last_chances:
            self._last_chances.discard(attempt.run.id)

    async def _record_after_renewal(self, attempt: Attempt, outcome: Outcome) -> None:
        """Past the trust deadline nothing is recorded unless the store says that the lease still holds."""
        run = attempt.run
        sent = self._clock.boot()
        try:
            answer = await self._store.renew(self._owner, [(run.id, run.epoch)], self._settings.lease_ttl)
        except StoreError as error:
            log.error("run %s: outcome lost, the lease ended while the store failed: %s", run.id, error)
            self._recorder.give_up(attempt, outcome)
            return
        if run.id in answer.kept:
            attempt.trust = sent + int(self._settings.lease_ttl * TRUST)
            self._recorder.record(attempt, outcome)
        else:
            # The result is refused; but while nobody has looked, the run is ours, and it must be known that it began.
            self._recorder.give_up(attempt, HandedBack("lease_lost", began=attempt.began_at is not None))
            self._recorder.stale(attempt, outcome)

    # ── stopping ───────────────────────────────────────────────────────────

    def cancel(self, run_id: str, reason: str) -> None:
        """Ask a run of ours to stop."""
        attempt = self.running.get(run_id)
        if attempt is not None and attempt.stop is None:
            self.stop_attempt(attempt, Cancelled(reason))

    def stop_attempt(self, attempt: Attempt, why: Outcome) -> None:
        """Tell the executor; the attempt ends through `finished` as always. One that only waits here ends at once."""
        attempt.stop = why
        attempt.cancelled.set()
        if attempt.handed:
            self.hear()  # it may be over
        if self.running.get(attempt.run.id) is not attempt:
            return
        if self.slots.withhold(attempt):
            self._end(attempt, why)
        else:
            self._executors[attempt.handler.kind].stop(attempt)

    async def drain(self, timeout: float) -> None:
        """Take nothing more, let what runs finish within `timeout` seconds, hand the rest back."""
        self.draining = True
        self._give_up_waiting(after=0.0)
        await self.stop()
        try:
            async with asyncio.timeout(timeout):
                while self.running:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            await self.hand_back("shutdown")
        with contextlib.suppress(StoreError):  # then the lease as it is has to do
            await self.heart.passing()

    async def hand_back(self, reason: str) -> None:
        """Stop everything and give it back now; nothing of it is lost."""
        attempts = list(self.running.values())
        for attempt in attempts:
            if attempt.stop is None:
                self.stop_attempt(attempt, HandedBack(reason, began=attempt.began_at is not None))
        # Coroutines unwind within a moment; threads cannot be stopped, so they are given back while they still run.
        for _ in range(20):
            if not self.running:
                break
            await asyncio.sleep(0.01)
        for attempt in list(self.running.values()):
            attempt.abandoned = True
            self._end(attempt, HandedBack(reason, began=attempt.began_at is not None))
        await self._recorder.drain()


def _alone(claimed: Claimed) -> bool:
    """A run that crashed before comes without neighbours: there may be more."""
    return bool(claimed.claims) and claimed.claims[0].run.crashes > 0


def _never_waits(attempt: Attempt) -> bool:
    """Runs that a crash of this process would harm before they have begun."""
    return not attempt.done and (attempt.at_most_once or attempt.run.crashes > 0)


def _max_crashes(attempt: Attempt) -> int:
    options = attempt.run.options
    return (options.max_crashes if options is not None else None) or attempt.handler.max_crashes


def _not_now(run: Run, options: RunOptions, now: Ms) -> Skipped | None:
    if run.failures or run.crashes or run.reason is not None:  # it has begun before
        return None
    if options.window is not None and not is_open(options.window, now):
        return Skipped("outside_time_window")
    if options.start_deadline is not None and now > run.due_at + options.start_deadline:
        return Skipped("start_deadline")
    return None


def _started(run: Run) -> Event:
    return RunStarted(
        at=run.started_at or 0,
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        n=run.n,
        epoch=run.epoch,
        attempt=run.attempt,
        owner=run.owner,
    )
