"""A property test: a store and the memory store receive equal random commands and must give equal answers and rows.

Needs `hypothesis`, which no other module of the package imports. Time is virtual and moves in whole seconds. Each run
is ready at an instant of its own, because the store port does not define the order of runs that are ready together.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.model.change import Change, Result
from mainspring.model.events import (
    CancelRequested,
    Event,
    LeaseExpired,
    Note,
    RunCancelled,
    RunReopened,
    RunSkipped,
    ScheduleDeleted,
    ScheduleEvent,
    ScheduleFinished,
    SchedulePaused,
    ScheduleResumed,
    ScheduleUpdated,
)
from mainspring.model.gate import Gate
from mainspring.model.ids import body_id
from mainspring.model.instant import DAY_MS, Ms
from mainspring.model.lease import Lease
from mainspring.model.retention import Retention
from mainspring.model.run import CLAIMABLE, ENDED, OPEN, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.store import (
    Agenda,
    Bodies,
    Claimed,
    Due,
    Events,
    Gates,
    Lanes,
    Leases,
    Offer,
    Query,
    Renewed,
    Runs,
    Schedules,
    Spans,
    Store,
    Tallies,
)
from mainspring.testing.contract.compare import comparable_answer, count_rows, group_by_stream
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    make_spec,
    move_change,
    plan_change,
    schedule_change,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

NO_LIMIT = 100_000
TTL_MS: Ms = 15_000
OWNERS = ("w1", "w2", "w3")
LANES = ("default/default", "default/other")
PAYLOADS = (None, None, "1", '{"a":"\\u0000é"}', '"shared"')
OUTCOMES = (*sorted(ENDED), State.WAITING, *[State.RETRYING] * 2, *[State.SUCCEEDED] * 3, *[State.FAILED] * 4)
#: Tasks without and with gates. Only the first is claimed under a limit: the port does not define how many runs a
#: claim examines behind full gates.
FREE_TASK, GATED_TASK = "free", "gated"
LOOK_AGENDAS = (Agenda.GATES, Agenda.SCHEDULES, Agenda.TOUCHED)
INDEX = range(100)
MOVES = ("pause", "until", "resume", "update", "rename", "finish", "delete")


def command(when: Callable[[Any], Any] = lambda machine: True, **choices: Sequence[Any]) -> Callable[[F], F]:
    """Return a decorator that makes a method a rule of hypothesis. `choices`: argument name → values to pick from.

    `when` returns True if the rule can be applied to a machine. `walk` calls the decorated methods, too.
    """

    def register(method: F) -> F:
        drawn: dict[str, Any] = {name: st.sampled_from(values) for name, values in choices.items()}
        decorate: Any = rule(**drawn)
        made: Any = precondition(when)(decorate(method))
        made.when, made.choices = when, choices
        return cast("F", made)

    return register


def store_machine(make: Callable[[Path], Store]) -> type[RuleBasedStateMachine]:
    """Return a state machine class of hypothesis for the stores that `make` creates, each empty and not yet open."""

    class StoreMachine(_Machine):
        make_store = staticmethod(make)

    return StoreMachine


class _Machine(RuleBasedStateMachine):
    """The commands, sent to both stores: `subject`, which `make_store` made, and `model`, which is a memory store."""

    make_store: Callable[[Path], Store]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.ids = Ids()
        self.now: Ms = T0
        self.made = 0
        self.ticks = 10
        #: Old rows of runs and schedules, changes, and terms of leases: commands use them again, even stale ones.
        self.leased: list[Run] = []
        self.stale: list[Schedule] = []
        self.sent: list[Change] = []
        self.terms: list[Lease] = []
        self.model: Store = MemoryStore()
        try:
            self.subject = type(self).make_store(Path(self.folder.name))
            self.run_async(self.subject.open())
        except BaseException:
            self.tidy()
            raise

    def teardown(self) -> None:
        try:
            self.run_async(self.subject.close())
        finally:
            self.tidy()

    def tidy(self) -> None:
        self.runner.close()
        self.folder.cleanup()

    # ── calls of both stores ───────────────────────────────────────────────

    def run_async(self, call: Awaitable[T]) -> T:
        async def drive() -> T:
            return await call

        return self.runner.run(drive())

    def both(self, ask: Callable[[Store], Awaitable[T]], key: Callable[[T], Any] = lambda answer: answer) -> T:
        """Call `ask` with each store, fail unless `key(answer)` is equal for both, and return the model's answer."""
        expected = self.run_async(ask(self.model))
        answer = self.run_async(ask(self.subject))
        assert key(answer) == key(expected), f"\nsubject: {key(answer)!r}\nmodel:   {key(expected)!r}"
        return expected

    def apply(self, *changes: Change) -> list[Result]:
        self.sent.extend(changes)
        return self.both(lambda store: store.apply(changes, now=self.now), comparable_answer).results

    def rows(self, query: Query[T]) -> list[T]:
        return self.run_async(self.model.find(query))

    def runs(self, *states: State) -> list[Run]:
        return self.rows(Runs(limit=NO_LIMIT, states=states or None, oldest_first=True))

    def schedules(self, *states: str) -> list[Schedule]:
        return [row for row in self.rows(Schedules(limit=NO_LIMIT)) if not states or row.state in states]

    def tick(self) -> Ms:
        """Return a number of milliseconds that no other run got, so that each run is ready at an instant of its own."""
        self.ticks += 1
        return self.ticks

    # ── commands ───────────────────────────────────────────────────────────

    @initialize(
        first=st.integers(0, 3),
        second=st.integers(0, 3),
        closed=st.sampled_from([0, 0, 20_000]),
        rng=st.randoms(use_true_random=True),
        steps=st.sampled_from([0, 5, 10, 20, 40, 40, 60, 60, 60]),
    )
    def begin(self, first: int, second: int, closed: Ms, rng: random.Random, steps: int) -> None:
        gates = (Gate("g1", first), Gate("g2", second, closed_until=T0 + closed))
        self.apply(Change(id=self.ids.change(), gates=gates))
        # Every example begins with some rows, whichever commands hypothesis chooses.
        self.create_schedule("a", False)
        self.create_schedule("b", True)
        for row in self.schedules():
            self.apply(plan_change(self.ids, row, [row.cursor + 1_000]))
        self.enqueue(2, priority=1, unique_key="u1", payload='"shared"')
        self.enqueue(3, gates=("g1", "g2"), lane=LANES[1])
        self.walk(rng, steps)

    @command(most=range(4), name=["g1", "g2"])
    def change_gate(self, most: int, name: str) -> None:
        self.apply(Change(id=self.ids.change(), gates=(Gate(name, most),)))

    @command(seconds=[1, 2, 5, 20, 86_400])
    def let_time_pass(self, seconds: int) -> None:
        self.now += seconds * 1_000

    @command(
        count=range(1, 4),
        priority=range(4),
        delay=[-5, -2, -2, 5],
        unique_key=[None, "u1", "u1", "u2"],
        gates=[(), (), ("g1",), ("g1", "g2")],
        lane=LANES,
        payload=PAYLOADS,
    )
    def enqueue(self, count: int, *, delay: int = -2, payload: str | None = None, **over: Any) -> None:
        changes = []
        for _ in range(count):
            due_at = self.now + delay * 1_000 + self.tick()
            run = make_run(self.ids, task=GATED_TASK if over.get("gates") else FREE_TASK, due_at=due_at, **over)
            changes.append(enqueue_change(self.ids, run, body=payload))
        self.apply(*changes)

    @command(lambda self: self.made < 9, name=["a", "b", "c"], gated=(False, True))
    def create_schedule(self, name: str, gated: bool) -> None:
        self.made += 1
        at = self.now + self.made
        spec = make_spec(task=GATED_TASK if gated else FREE_TASK, gates=("g1",) if gated else ())
        row = make_schedule(self.ids, name=name, spec=spec, anchor=at, cursor=at, next_at=at + 1_000)
        self.apply(create_schedule_change(self.ids, row))

    @command(
        lambda self: self.schedules("active"),
        pick=INDEX,
        fires=range(4),
        elided=range(3),
        skipped=(False, True),
        stale=(False, True),
        doubled=(False, True),
    )
    def plan(self, pick: int, fires: int, elided: int, skipped: bool, stale: bool, doubled: bool) -> None:
        rows = self.stale if stale and self.stale else self.schedules("active")
        row = rows[pick % len(rows)]
        start = row.cursor + elided * 1_000
        spans = [Span(row.id, row.revision, row.cursor, start, elided, "missed")] if elided else []
        times = [start + 1_000 * (i + 1) for i in range(fires)]
        over: dict[str, Any] = {"state": State.SKIPPED, "reason": "overlap"} if skipped else {}
        plan = plan_change(self.ids, row, times, spans=spans, **over)
        if doubled and plan.runs:
            # Another instance has inserted one of the fires already: the store skips that one and accepts the rest.
            run = plan.runs[0]
            born = RunSkipped(run_id=run.id, schedule_id=row.id, reason="x", fire_key=run.fire_key)
            other = replace(enqueue_change(self.ids, replace(run, state=State.SKIPPED)), events=(born,))
            self.apply(other)
        self.apply(plan)
        self.stale = [*self.stale[-3:], row]

    @command(lambda self: self.schedules(), pick=INDEX, move=MOVES)
    def move_schedule(self, pick: int, move: str) -> None:
        rows = self.schedules()
        row = rows[pick % len(rows)]
        event: Event
        values: dict[str, Any] = {}
        if move in ("pause", "until"):
            until = self.now + 5_000 if move == "until" else None
            event = SchedulePaused(schedule_id=row.id, reason="user", until=until)
            values = {"state": "paused", "reason": "user", "until": until, "next_at": until}
        elif move == "resume":
            event = ScheduleResumed(schedule_id=row.id, cursor=row.cursor)
            values = {"state": "active", "reason": None, "until": None, "next_at": row.cursor + 1_000}
        elif move in ("update", "rename"):
            name = "abc"[pick % 3] if move == "rename" else row.name
            spec = replace(row.spec, priority=(row.spec.priority + 1) % 4)
            revision = row.revision + 1
            values = {"revision": revision, "spec": spec, "name": name}
            event = ScheduleUpdated(schedule_id=row.id, anchor=row.anchor, cursor=row.cursor, **values)
        elif move == "finish":
            event = ScheduleFinished(schedule_id=row.id, reason="ended", cursor=row.cursor)
            values = {"state": "finished", "next_at": None}
        else:
            event = ScheduleDeleted(schedule_id=row.id)
            values = {"state": "deleted", "next_at": None}
        self.apply(schedule_change(self.ids, row, event, **values))
        self.stale = [*self.stale[-3:], row]

    @command(lambda self: self.runs(*CLAIMABLE), owner=OWNERS, how=["all", "ahead", "few", "named"], pick=INDEX)
    def claim_some(self, owner: str, how: str, pick: int) -> None:
        if how in ("all", "ahead"):
            ahead = 3_000 * (pick % 3) if how == "ahead" else 0
            self.claim(Offer(owner, LANES, (FREE_TASK, GATED_TASK), TTL_MS, ahead), 1_000)
        elif how == "few":
            self.claim(Offer(owner, LANES[: pick % 2 + 1], (FREE_TASK,), TTL_MS), pick % 4 + 1)
        else:
            runs = self.runs(*CLAIMABLE)
            self.claim(Offer(owner, LANES, (FREE_TASK,), TTL_MS), 10, [runs[pick % len(runs)].id])

    @command(lambda self: self.runs(*CLAIMABLE), owner=OWNERS, left=range(3), state=OUTCOMES)
    def work(self, owner: str, left: int, state: State) -> None:
        """Claim every run that can be claimed, and finish all of them but the last `left`."""
        before = len(self.leased)
        self.claim(Offer(owner, LANES, (FREE_TASK, GATED_TASK), TTL_MS), 1_000)
        mine = self.leased[before:]
        self.report(mine[: len(mine) - left], state)

    def claim(self, offer: Offer, limit: int, ids: Iterable[str] = ()) -> None:
        """Claim on both stores, compare the answers, and remember the claimed runs for later commands."""
        wanted = tuple(ids)

        def key(claimed: Claimed) -> Any:
            return claimed.now, claimed.claims, claimed.next_at and max(claimed.next_at, claimed.now)

        claimed = self.both(lambda store: store.claim(offer, limit, ids=wanted, now=self.now), key)
        self.leased += [claim.run for claim in claimed.claims]

    @command(
        lambda self: self.leased,
        pick=INDEX,
        count=range(1, 5),
        state=OUTCOMES,
        touch=(False, True),
        delay=[-1, 3],
    )
    def finish(self, pick: int, count: int, state: State, touch: bool, delay: int) -> None:
        """Report `state` as the outcome of up to `count` runs claimed at any time, even if their leases have ended."""
        picked = {run.id: run for i in range(count) for run in [self.leased[-1 - (pick + i) % len(self.leased)]]}
        self.report(picked.values(), state, touch=touch, delay=delay)

    def report(self, runs: Iterable[Run], state: State, *, touch: bool = True, delay: int = -1) -> None:
        changes = []
        for run in runs:
            touches = [run.schedule_id] if touch and run.schedule_id else []
            ready_at = self.now + delay * 1_000 + self.tick()
            values: dict[str, Any] = {"result": '"done"'} if state is State.SUCCEEDED else {}
            changes.append(finish_change(self.ids, run, state, ready_at=ready_at, touches=touches, **values))
        self.apply(*changes)
        self.now += 1_000

    @command(lambda self: self.leased, owner=[None, None, *OWNERS], left=range(3), shift=[0, 0, 0, 1])
    def renew(self, owner: str | None, left: int, shift: int) -> None:
        """Renew the leases of `owner` (None: of the newest claim), except the first `left`. `shift` 1: wrong epochs."""
        owner = owner or self.leased[-1].owner or ""
        runs = [run for run in self.leased if run.owner == owner][left:] or self.leased[:2]
        picked = {run.id: run.epoch + shift for run in runs}

        def key(renewed: Renewed) -> Any:
            return replace(renewed, strays=tuple(sorted(renewed.strays, key=lambda run: run.id)))

        self.both(lambda store: store.renew(owner, list(picked.items()), TTL_MS, now=self.now), key)
        if runs:
            run = runs[0]
            self.both(lambda store: store.progress(run.id, run.epoch, f"½ {self.now}"))

    @command(lambda self: self.runs(State.RUNNING), rescue=(False, True))
    def expire(self, rescue: bool) -> None:
        due = self.due(Agenda.EXPIRED, lambda due: sorted(due.runs, key=lambda run: run.id))
        if rescue and due.runs:
            self.apply(*(self.rescued(run) for run in due.runs))

    def rescued(self, run: Run) -> Change:
        ready_at = self.now - 1_000 + self.tick()
        event = LeaseExpired(run_id=run.id, schedule_id=run.schedule_id, crashes=run.crashes + 1, ready_at=ready_at)
        return move_change(
            self.ids, run, event, state=State.WAITING, crashes=run.crashes + 1, ready_at=ready_at, began_at=None
        )

    @command(lambda self: self.runs(*OPEN), pick=INDEX)
    def cancel(self, pick: int) -> None:
        runs = self.runs(*OPEN)
        run = runs[pick % len(runs)]
        if run.state is State.RUNNING:
            self.apply(move_change(self.ids, run, CancelRequested(run_id=run.id, reason="user"), cancel="user"))
        else:
            event = RunCancelled(run_id=run.id, reason="user")
            self.apply(move_change(self.ids, run, event, state=State.CANCELLED, cancel="user", reason="user"))

    @command(lambda self: self.runs(*ENDED), pick=INDEX, keyed=(False, True))
    def reopen(self, pick: int, keyed: bool) -> None:
        runs = self.runs(*ENDED)
        runs = [run for run in runs if run.unique_key] or runs if keyed else runs
        run = runs[pick % len(runs)]
        ready_at = self.now - 1_000 + self.tick()
        event = RunReopened(run_id=run.id, ready_at=ready_at)
        fresh: dict[str, Any] = {"dead": False, "failures": 0, "crashes": 0, "error": None, "cancel": None}
        self.apply(move_change(self.ids, run, event, state=State.WAITING, ready_at=ready_at, **fresh))

    @command(agenda=LOOK_AGENDAS, settle=(False, True), seen=(False, True))
    def look(self, agenda: Agenda, settle: bool, seen: bool) -> None:
        def key(due: Due) -> Any:
            rows = sorted(due.schedules, key=lambda row: row.schedule.id)
            return rows, due.unparked, due.next_at if agenda is Agenda.SCHEDULES and not rows else None

        due = self.due(agenda, key)
        if settle and agenda is Agenda.TOUCHED and due.schedules:
            changes = []
            for row in due.schedules:
                event = ScheduleResumed(schedule_id=row.schedule.id, cursor=row.schedule.cursor)
                touched = row.touched if seen else row.touched + 1
                changes.append(schedule_change(self.ids, row.schedule, event, touched=touched))
            self.apply(*changes)

    def due(self, agenda: Agenda, key: Callable[[Due], Any]) -> Due:
        """Call `due` on both stores and compare the answers by `key`; then move time past the hold.

        Why: a store may end a hold early, so during a hold the answers could differ.
        """
        due = self.both(lambda store: store.due(agenda, 1_000, hold=1, now=self.now), lambda due: (due.now, key(due)))
        self.now += 1_000
        return due

    @command(lambda self: self.sent, pick=range(10))
    def send_again(self, pick: int) -> None:
        change = self.sent[-1 - pick % len(self.sent)]
        if change.events:
            self.both(lambda store: store.apply([change], now=self.now), comparable_answer)

    @command(owner=OWNERS, own=(False, True), how=["take", "renew", "end"], pick=INDEX)
    def lease(self, owner: str, own: bool, how: str, pick: int) -> None:
        if how == "take" or not self.terms:
            name, data = ("leader", "x%")[pick % 2], (None, "d")[pick // 2 % 2]
            lease = self.both(lambda store: store.lease(name, owner, 7_000, data=data, now=self.now))
            self.terms += [lease] if lease is not None else []
            return
        term = self.terms[-1 - pick % min(3, len(self.terms))]
        who = term.owner if own else owner
        if how == "renew":
            self.both(lambda store: store.lease(term.name, who, 7_000, epoch=term.epoch, now=self.now))
        elif term.expires_at > self.now:
            self.both(lambda store: store.release(term.name, who, term.epoch, now=self.now))

    @command(lambda self: len(self.runs(*ENDED)) > 2, age=[0, 0, 10_000, DAY_MS], keep_dead=(False, True))
    def purge(self, age: Ms, keep_dead: bool) -> None:
        policy = Retention(self.now - age, keep_dead)
        self.both(lambda store: store.purge(policy, 1_000, now=self.now))
        # If the events of a change were removed, a store cannot recognise the change when it is sent again.
        self.sent = []

    def walk(self, rng: random.Random, steps: int) -> None:
        """Try `steps` commands, all equally likely. Why: hypothesis itself tries similar commands again and again."""
        commands = [name for name in dir(type(self)) if hasattr(getattr(type(self), name), "choices")]
        for _ in range(steps):
            method = getattr(self, rng.choice(commands))
            if method.when(self):
                method(**{name: rng.choice(choices) for name, choices in method.choices.items()})
                self.rows_are_equal()
                self.the_log_is_whole()

    # ── what must hold after every step ────────────────────────────────────

    @invariant()
    def rows_are_equal(self) -> None:
        bodies = tuple(body_id(text.encode()) for text in PAYLOADS if text is not None)
        self.same_rows(Runs(limit=NO_LIMIT))
        self.same_rows(Schedules(limit=NO_LIMIT, states=("active", "paused", "finished", "deleted")))
        self.same_rows(Spans(limit=NO_LIMIT))
        self.same_rows(Gates(limit=NO_LIMIT))
        self.same_rows(Lanes(limit=NO_LIMIT))
        # `live` is computed by the store's own clock, which does not follow the virtual time.
        self.both(lambda s: s.find(Leases(limit=NO_LIMIT)), lambda rows: [replace(x, live=True, left=0) for x in rows])
        self.both(lambda store: store.find(Tallies(limit=NO_LIMIT)), count_rows)
        self.both(lambda store: store.find(Bodies(ids=bodies, limit=NO_LIMIT)), count_rows)
        self.both(lambda store: store.find(Events(limit=NO_LIMIT)), group_by_stream)

    def same_rows(self, query: Query[Any]) -> None:
        self.both(lambda store: store.find(query))

    @invariant()
    def the_log_is_whole(self) -> None:
        """Check that each row's events are numbered without gaps up to its `n`, and that `held` of gates is true."""
        log = self.run_async(self.subject.tail(0, NO_LIMIT))
        seqs = [event.seq for event in log]
        assert seqs == sorted(set(seqs))
        moves: dict[str, list[int]] = defaultdict(list)
        for event in log:
            if not isinstance(event, Note):
                row = event.schedule_id if isinstance(event, ScheduleEvent) else event.run_id
                moves[row or ""].append(event.n or 0)
        runs = self.run_async(self.subject.find(Runs(limit=NO_LIMIT)))
        for run in runs:
            assert moves[run.id] == list(range(1, run.n + 1)), run
        for schedule in self.run_async(self.subject.find(Schedules(limit=NO_LIMIT))):
            numbers = moves[schedule.id]
            assert numbers == list(range(numbers[0], schedule.n + 1)), schedule
        self._check_gates(runs)

    def _check_gates(self, runs: Iterable[Run]) -> None:
        held = Counter(name for run in runs if run.state is State.RUNNING for name in run.gates)
        for gate in self.run_async(self.subject.find(Gates(limit=NO_LIMIT))):
            assert gate.held == held[gate.name], gate
