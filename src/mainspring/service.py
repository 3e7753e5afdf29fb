"""The one read and command service: Python API, CLI, REST and UI all call it. Lives on the engine's loop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.store_time import StoreTime
from mainspring.model.change import Body, Change, Result, RunAbsent, RunAt
from mainspring.model.errors import (
    InvalidInput,
    ScheduleConflict,
    StoreError,
    UnknownRun,
    UnknownSchedule,
    nearest,
)
from mainspring.model.events import DeclarationConflict, Event, RunEvent, RunScheduled, SchedulePaused
from mainspring.model.gate import Gate
from mainspring.model.http import HTTP_TASK, HttpAgent
from mainspring.model.ids import IdFactory, plain
from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.model.policies import OnConflict
from mainspring.model.run import OPEN, Run, State
from mainspring.model.schedule import Origin, Schedule, ScheduleSpec
from mainspring.model.trigger import AtSpec
from mainspring.paging import log_end
from mainspring.ports.following import Follower, follower
from mainspring.ports.store import Bodies, Events, KeptOnes, Runs, Schedules, Store
from mainspring.rules.declaring import Live, judge, version_key
from mainspring.rules.definition import digest_of
from mainspring.rules.draft import Draft
from mainspring.rules.lanes import touches_of
from mainspring.rules.lifecycle import Command, Discard, Reopen, RequestCancel, all_born, born, decide, evolve
from mainspring.rules.planning import OpenRuns
from mainspring.rules.scheduling import changed_fields, create, delete, manual_run, pause, resume, update

if TYPE_CHECKING:
    from mainspring.agents.vault import Vault

log = logging.getLogger("mainspring")

RACES = 20
#: So far back an event may still come that was numbered before others and commits after them.
LATE = 1_000
#: The most that one commit takes.
CHUNK = 1_000


class Overtaken(Exception):
    """Another edit of the schedule came first."""


class NewRun(Struct, frozen=True, gc=False):
    """A run to be enqueued: its first event, its payload, its gates."""

    event: RunScheduled
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()


class Definition(Struct, frozen=True, kw_only=True, gc=False):
    """A schedule as somebody wants it to be."""

    ns: str
    name: str
    spec: ScheduleSpec
    digest: str
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    origin: Origin = "api"
    by: str = ""
    app: str = ""
    version: str = ""
    delay: Ms | None = None
    #: Why it is paused from the beginning, in the same commit.
    paused: str | None = None
    #: The HTTP agent with header values that are not put away yet; see `Commands.sealed`.
    agent: HttpAgent | None = None

    def spec_at(self, now: Ms) -> ScheduleSpec:
        """The definition as it is written now: a delay counts from here, so that its one fire always lies ahead."""
        if self.delay is None:
            return self.spec
        return replace(self.spec, trigger=AtSpec((now + max(1, self.delay),)))


class Commands:
    """Reads, and writes that are decided by the rules and guarded by the store."""

    def __init__(
        self,
        store: Store,
        apply: Callable[[Change], Awaitable[Result]],
        apply_many: Callable[[Sequence[Change]], Awaitable[list[Result]]],
        time: StoreTime,
        ids: IdFactory,
        change_id: Callable[[], str],
        vault: Callable[[], Vault],
    ) -> None:
        self._store = store
        self._vault = vault
        self._apply = apply
        self._apply_many = apply_many
        self._time = time
        self._ids = ids
        self._change_id = change_id

    # ── reading ────────────────────────────────────────────────────────────

    async def schedule(self, ns: str, key: str) -> Schedule:
        """By name or id; an unknown one is answered with the nearest name."""
        found = await self._store.find(Schedules(ns=ns, name=key, limit=1))
        if not found:
            found = await self._store.find(Schedules(id=key, limit=1))
        if not found:
            names = [s.name for s in await self._store.find(Schedules(ns=ns, limit=1_000))]
            raise UnknownSchedule(f"no schedule is called {key!r}. {nearest(key, names)}".strip())
        return found[0]

    async def schedules(self, query: Schedules) -> list[Schedule]:
        return await self._store.find(query)

    async def run(self, run_id: str) -> Run:
        found = await self._store.find(Runs(id=run_id, limit=1))
        if not found:
            raise UnknownRun(f"no run has the id {run_id!r}")
        return found[0]

    async def runs(self, query: Runs) -> list[Run]:
        return await self._store.find(query)

    async def events(self, query: Events) -> list[Event]:
        return await self._store.find(query)

    async def follower(self, place: str | None) -> Follower:
        """One who follows the log from a place, or from now on."""
        if place is not None:
            return follower(self._store, place)
        # A little of what is there is read and put aside: what commits late among it is still to come.
        found = follower(self._store, str(max(0, await log_end(self._store) - LATE)))
        while len(await found.steps(LATE)) >= LATE:
            pass
        return found

    async def bodies(self, ids: Iterable[str | None]) -> dict[str, str]:
        """Payloads by their names; those that are gone are left out."""
        wanted = tuple({name for name in ids if name is not None})
        found = await self._store.find(Bodies(ids=wanted, limit=len(wanted))) if wanted else []
        return {body.id: body.data for body in found}

    # ── beside the log ─────────────────────────────────────────────────────

    async def keep(self, items: Sequence[Kept], *, replace: bool = False) -> list[bool]:
        """Keep secrets and answers; False where one was there and may not be replaced."""
        return await self._store.keep(items, replace=replace)

    async def kept(self, kind: str, ids: Iterable[str]) -> dict[str, Kept]:
        """Kept things by id; those that are gone are left out."""
        wanted = tuple(dict.fromkeys(ids))
        found = await self._store.find(KeptOnes(kind=kind, ids=wanted, limit=len(wanted))) if wanted else []
        return {one.id: one for one in found}

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        """Remove kept things."""
        return await self._store.forget(kind, ids)

    async def _opened(self, schedule_id: str) -> OpenRuns:
        runs = await self._store.find(
            Runs(schedule_id=schedule_id, states=tuple(OPEN), limit=10_000, oldest_first=True)
        )
        waiting = sum(run.state is not State.RUNNING for run in runs)
        return OpenRuns(len(runs), waiting, runs[0].id if runs else None)

    # ── schedules ──────────────────────────────────────────────────────────

    async def sealed(self, want: Definition) -> Definition:
        """The same with the header values of its agent kept beside the log, and a reference in their place."""
        agent, options = want.agent, want.spec.options
        if agent is None or agent.headers is None or options is None or options.http is None:
            return want
        ref = await self._vault().put_away(f"{want.ns}/{want.name}", agent.headers)
        spec = replace(want.spec, options=replace(options, http=replace(options.http, headers_ref=ref)))
        digest = digest_of(spec) if want.digest == digest_of(want.spec) else want.digest
        return replace(want, spec=spec, digest=digest, agent=None)

    async def create(self, want: Definition, on_conflict: OnConflict = "error", *, fresh: bool = False) -> Schedule:
        """A new schedule; the same definition again changes nothing, another one, or any where a `fresh` one is
        meant, is a conflict."""
        want = await self.sealed(want)
        for _ in range(RACES):
            found = await self._store.find(Schedules(ns=want.ns, name=want.name, limit=1))
            if found and fresh:
                raise ScheduleConflict(
                    "name", f"a schedule called {want.name!r} exists: {found[0].id}", "Choose another name, or edit it"
                )
            if found:
                same = found[0].spec == want.spec or (found[0].digest == want.digest and found[0].revision == 1)
                if same or on_conflict == "keep":
                    return found[0]
                if on_conflict == "replace":
                    return await self.replace(found[0], want)
                fields = ", ".join(changed_fields(found[0].spec, want.spec))
                raise ScheduleConflict(
                    "name",
                    f"a schedule called {want.name!r} exists with another definition (different: {fields})",
                    'Choose another name, or say on_conflict="replace" or "keep"',
                )
            draft = self._new_schedule(want, self._time.now())
            if (await self._write(draft, want.bodies, want.gates)).ok:
                if draft.schedule.state == "finished" and draft.schedule.reason != "max_runs":
                    log.warning("schedule %r will never fire: no fire of it lies in the future", want.name)
                return await self._stored(draft.schedule)
        raise StoreError(f"schedule {want.name!r} kept changing while it was created")

    async def create_many(self, wants: list[Definition], on_conflict: OnConflict = "error") -> int:
        """New schedules in one commit; how many of them are new. Names that exist are judged one by one, as always."""
        wants = [want if want.agent is None else await self.sealed(want) for want in wants]
        now = self._time.now()
        changes = [self._change(self._new_schedule(want, now), want.bodies, want.gates) for want in wants]
        results = await self._apply_many(changes)
        for want, result in zip(wants, results, strict=True):
            if not result.ok:
                await self.create(want, on_conflict)
        return sum(result.ok for result in results)

    def _new_schedule(self, want: Definition, now: Ms) -> Draft:
        draft = create(
            self._ids.uuid7(now),
            want.ns,
            want.name,
            want.spec_at(now),
            now,
            origin=want.origin,
            by=want.by,
            app=want.app,
            version=want.version,
            digest=want.digest,
        )
        if want.paused is not None and draft.schedule.state == "active":
            draft.emit(SchedulePaused(ns=want.ns, schedule_id=draft.schedule.id, reason=plain(want.paused)))
        return draft

    async def replace(self, schedule: Schedule, want: Definition, *, exactly: bool = False) -> Schedule:
        """A new revision; refused writes are decided again on what is there now, unless `exactly` this one is meant."""
        want = await self.sealed(want)

        def decide_on(row: Schedule, opened: OpenRuns, now: Ms) -> Draft:
            if exactly and row.revision != schedule.revision:
                raise Overtaken(row.name)
            return update(
                row,
                opened,
                want.spec_at(now),
                now,
                origin=want.origin,
                by=want.by,
                version=want.version,
                digest=want.digest,
            )

        row = await self._edit(schedule, decide_on, want.bodies, want.gates)
        if _headers_ref(schedule) not in (None, _headers_ref(row)):
            await self._vault().retire(ref=_headers_ref(schedule))
        return row

    async def declare(
        self, want: Definition, live: tuple[Live, ...], on_drift: Literal["keep", "code"] = "keep"
    ) -> str:
        """A schedule that code declares; what was done is the answer."""
        want = await self.sealed(want)
        found = await self._store.find(Schedules(ns=want.ns, name=want.name, limit=1))
        existing = found[0] if found else None
        verdict = judge(existing, want.digest, want.version, live, on_drift)
        if verdict == "create":
            await self.create(want, on_conflict="keep")
        elif existing is not None and (verdict == "resume" or (verdict == "drift" and _undeclared(existing))):
            await self.resume(existing, reason="declared again")
        elif existing is not None and verdict == "update":
            row = await self.replace(existing, want)
            if _undeclared(row):
                await self.resume(row, reason="declared again")
        elif existing is not None and verdict == "conflict":
            newest = max((one.version for one in live), key=version_key)
            note = DeclarationConflict(
                ns=want.ns, schedule_id=existing.id, name=want.name, declared=want.version, live=newest
            )
            await self._apply(Change(id=self._change_id(), events=(note,)))
        return verdict

    async def pause(self, schedule: Schedule, *, reason: str = "paused", until: Ms | None = None) -> Schedule:
        if until is not None and until <= self._time.now():
            raise InvalidInput("until", "lies in the past", "Give an instant in the future, or none")
        if schedule.state == "finished":
            raise InvalidInput("schedule", f"{schedule.name!r} has finished ({schedule.reason})", "Edit it to go on")
        said = plain(reason)
        return await self._edit(schedule, lambda row, opened, now: pause(row, opened, now, reason=said, until=until))

    async def resume(self, schedule: Schedule, *, reason: str = "") -> Schedule:
        return await self._edit(schedule, lambda row, _, now: resume(row, now, reason=reason))

    async def delete(self, schedule: Schedule, *, reason: str = "user", exactly: bool = False) -> Schedule:
        """Gone at once; what waits is cancelled with the reason, what runs ends."""

        def decide_on(row: Schedule, opened: OpenRuns, now: Ms) -> Draft:
            if exactly and row.revision != schedule.revision:
                raise Overtaken(row.name)
            return delete(row, opened, now, reason=reason)

        row = await self._edit(schedule, decide_on)
        waiting = (State.WAITING, State.RETRYING, State.BLOCKED)
        while runs := await self._store.find(Runs(schedule_id=row.id, states=waiting, limit=500)):
            for run in runs:
                await self._command(run, RequestCancel("the schedule was deleted", reason))
        if row.spec.task == HTTP_TASK:
            await self._vault().retire(ref=_headers_ref(row), schedule_id=row.id)
        return row

    async def trigger(self, schedule: Schedule, body: Body | None = None, *, by: str = "") -> Run:
        """A run now, outside the plan."""
        if schedule.state == "deleted":
            raise UnknownSchedule(f"the schedule {schedule.name!r} was deleted")
        now = self._time.now()
        event = manual_run(
            schedule, self._ids.uuid7(now), now, body=schedule.spec.body if body is None else body.id, actor=by or None
        )
        run, _ = await self.enqueue(NewRun(event, () if body is None else (body,)))
        return run

    async def _edit(
        self,
        schedule: Schedule,
        decide_on: Callable[[Schedule, OpenRuns, Ms], Draft],
        bodies: tuple[Body, ...] = (),
        gates: tuple[Gate, ...] = (),
    ) -> Schedule:
        row = schedule
        for _ in range(RACES):
            if row.state == "deleted":
                raise UnknownSchedule(f"the schedule {row.name!r} was deleted")
            opened = await self._opened(row.id)
            draft = decide_on(row, opened, await self._time.ask())
            if not draft.changed:
                return row
            if (await self._write(draft, bodies, gates)).ok:
                if draft.cancels_open:
                    await self.cancel_older(draft)
                return await self._stored(draft.schedule)
            row = (await self._store.find(Schedules(id=row.id, limit=1)))[0]
        raise StoreError(f"schedule {row.name!r} kept changing while it was edited")

    async def _stored(self, schedule: Schedule) -> Schedule:
        """The row with what the store filled in; as it was written when it has gone on since."""
        found = await self._store.find(Schedules(id=schedule.id, limit=1))
        return found[0] if found and found[0].n == schedule.n else schedule

    async def cancel_older(self, draft: Draft) -> None:
        """`cancel_running`: everything older makes way for the new fire, which waits behind the gate until it has."""
        new = {run.id for run in draft.runs}
        for run in await self._store.find(Runs(schedule_id=draft.schedule.id, states=tuple(OPEN), limit=1_000)):
            if run.cancel is None and run.id not in new:
                await self._command(run, RequestCancel("replaced by a newer fire", "overlap"))

    async def _write(self, draft: Draft, bodies: tuple[Body, ...], gates: tuple[Gate, ...]) -> Result:
        return await self._apply(self._change(draft, bodies, gates))

    def _change(self, draft: Draft, bodies: tuple[Body, ...], gates: tuple[Gate, ...]) -> Change:
        draft.bodies.extend(bodies)
        draft.gates.extend(gates)
        return draft.change(self._change_id())

    # ── runs ───────────────────────────────────────────────────────────────

    async def enqueue(self, new: NewRun) -> tuple[Run, bool]:
        """The run and whether it is new; a taken unique key answers with the run that holds it."""
        run, change = self.birth(new)
        return created(run, await self._apply(change))

    def birth(self, new: NewRun) -> tuple[Run, Change]:
        """A run as it will be, and the change that stores it; from any thread."""
        run = born(new.event)
        change = Change(
            id=self._change_id(),
            guard=RunAbsent(run.id, run.unique_key),
            run=run,
            bodies=new.bodies,
            gates=new.gates,
            events=(new.event,),
        )
        return run, change

    def births(self, chunk: list[NewRun]) -> Change:
        """The change that stores up to `CHUNK` runs without unique keys; from any thread."""
        return Change(
            id=self._change_id(),
            runs=tuple(all_born([new.event for new in chunk])),
            bodies=tuple({body.id: body for new in chunk for body in new.bodies}.values()),
            gates=tuple({gate.name: gate for new in chunk for gate in new.gates}.values()),
            events=tuple([new.event for new in chunk]),
        )

    async def cancel(self, run_id: str, *, reason: str, by: str = "") -> Run:
        """Waiting runs end here; a running one is asked to stop."""
        run = await self.run(run_id)
        if run.state not in OPEN:
            return run
        return await self._command(run, RequestCancel(plain(reason), by))

    async def reopen(self, run_id: str, *, by: str = "") -> Run:
        """Run an ended run again: the same row, the same fire time, fresh budgets."""
        return await self._command(await self.run(run_id), Reopen(by))

    async def discard(self, run_id: str, *, by: str = "") -> Run:
        """Put a dead letter away."""
        return await self._command(await self.run(run_id), Discard(by))

    async def _command(self, run: Run, command: Command) -> Run:
        for _ in range(RACES):
            events: tuple[RunEvent, ...] = decide(run, command, self._time.now())
            after = evolve(run, events[0])
            change = Change(
                id=self._change_id(), guard=RunAt(run.id, run.n), run=after, events=events, touches=touches_of(after)
            )
            done = (await self._apply(change)).ok
            before, run = run, await self.run(run.id)
            if not done and run.n == before.n and run.unique_key is not None:
                raise InvalidInput(
                    "unique", f"{run.unique_key!r} is held by another open run", "Wait for it or cancel it"
                )
            if done:
                return run if run.n == after.n else after
            if isinstance(command, RequestCancel) and run.state not in OPEN:
                return run
        raise StoreError(f"run {run.id} kept changing")


def _headers_ref(schedule: Schedule) -> str | None:
    options = schedule.spec.options
    return None if options is None or options.http is None else options.http.headers_ref


def _undeclared(schedule: Schedule) -> bool:
    """True while a schedule is paused because no code declared it."""
    return schedule.state == "paused" and schedule.reason == "not_declared"


def created(run: Run, result: Result) -> tuple[Run, bool]:
    """The run that is stored, and whether it is this one."""
    if result.ok:
        return run, True
    assert isinstance(result.current, Run)
    return result.current, False
