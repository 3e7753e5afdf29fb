"""Commands and queries on schedules, runs, events, payloads and key-value entries. Thread: engine loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engine.declared_definitions import DeclaredDefinitions
from mainspring.engine.deletions import cancel_waiting_runs
from mainspring.engine.known_fires import find_known_fires
from mainspring.engine.store_clock import StoreClock
from mainspring.model.change import Body, Change, Result, RunAbsent, RunAt
from mainspring.model.errors import (
    InvalidInput,
    ScheduleConflict,
    StoreError,
    UnknownRun,
    UnknownSchedule,
)
from mainspring.model.events import Event, RunEvent, SchedulePaused
from mainspring.model.gate import Gate
from mainspring.model.http import HTTP_TASK
from mainspring.model.ids import IdFactory, is_id, storable_text
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.masked_events import mask_event
from mainspring.model.policies import OnConflict
from mainspring.model.run import OPEN, Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.log_cursor import LogCursor, open_cursor
from mainspring.ports.paging import find_log_end
from mainspring.ports.store import Bodies, Events, KeyValues, Runs, Schedules, Store
from mainspring.rules.lanes import schedules_to_touch
from mainspring.rules.lifecycle import decide, evolve, run_from_event, runs_from_events
from mainspring.rules.planning import OpenRuns
from mainspring.rules.run_commands import Command, Discard, Reopen, RequestCancel
from mainspring.rules.schedule_commands import changed_fields, create, delete, manual_run, pause, resume, update
from mainspring.rules.schedule_draft import ScheduleDraft
from mainspring.service.agent_secrets import agent_of, holds_query_values, move_agent_secrets, store_agent_secrets
from mainspring.service.definition_warnings import warn_of_mistakes
from mainspring.service.requests import NewRun, ScheduleRequest, request_of
from mainspring.service.rewinding import rewind_schedule
from mainspring.service.schedule_names import check_new_names, check_rename, name_taken
from mainspring.service.unknown_schedules import explain_unknown_schedule

if TYPE_CHECKING:
    from mainspring.agents.vault import Vault

log = logging.getLogger("mainspring")
MAX_WRITE_ATTEMPTS = 20  # of one command: if the row has changed before it is written, decide again on the new row
MAX_LATE_EVENTS = 1_000  # an event may be committed after this number of events with greater numbers, not after more
MAX_ROWS_PER_COMMIT = 1_000  # runs or schedules


class RevisionConflict(Exception):
    """Raised to refuse an edit or deletion because the schedule no longer has the revision that the caller read."""


class Commands:
    """Queries and commands on a store. If another write changes the row first, a command is decided on the new row."""

    def __init__(
        self,
        ns: str,  # the namespace of the app
        store: Store,
        apply: Callable[[Change], Awaitable[Result]],  # commits a change and returns the result
        apply_many: Callable[[Sequence[Change]], Awaitable[list[Result]]],
        time: StoreClock,
        ids: IdFactory,
        change_id: Callable[[], str],  # returns the id for a new change
        vault: Callable[[], Vault],  # returns the store of header values and signing secrets of HTTP agents
    ) -> None:
        self._ns = ns
        self._store = store
        self._vault = vault
        self._apply = apply
        self._apply_many = apply_many
        self._time = time
        self._ids = ids
        self._change_id = change_id
        #: What code declared about the schedules.
        self.definitions = DeclaredDefinitions(store)

    def acting_as(self, actor: str) -> Commands:
        """Return commands on the same store whose events have `actor` as their actor, such as an API key."""

        def stamp(change: Change) -> Change:
            return replace(change, events=tuple(replace(event, actor=actor) for event in change.events))

        return Commands(
            self._ns,
            self._store,
            lambda change: self._apply(stamp(change)),
            lambda changes: self._apply_many([stamp(change) for change in changes]),
            self._time,
            self._ids,
            self._change_id,
            self._vault,
        )

    async def schedule(self, ns: str, key: str) -> Schedule:
        """Return the schedule in `ns` whose id or name is `key`. A schedule of another namespace is unknown.

        A deleted one is found by its id only. A key in the form of an id is first looked up as an id, so that a name
        cannot hide another schedule. Raises: UnknownSchedule, with the nearest name, if there is none.
        """
        by_name, by_id = Schedules(ns=ns, name=key, limit=1), Schedules(ns=ns, id=key, limit=1)
        first, second = (by_id, by_name) if is_id(key) else (by_name, by_id)
        found = await self._store.find(first) or await self._store.find(second)
        if not found:
            raise UnknownSchedule(await explain_unknown_schedule(self._store, ns, key))
        return found[0]

    async def schedules(self, query: Schedules) -> list[Schedule]:
        """Return the schedules that `query` selects, oldest first, at most `query.limit` of them."""
        return await self._store.find(query)

    async def run(self, run_id: str) -> Run:
        """Return a run of the app's namespace by its id. Raises: UnknownRun, also for a run of another namespace."""
        return await self._find_run(self._ns, run_id)

    async def _find_run(self, ns: str, run_id: str) -> Run:
        found = await self._store.find(Runs(ns=ns, id=run_id, limit=1))
        if not found:
            raise UnknownRun(f"no run has the id {run_id!r}")
        return found[0]

    async def runs(self, query: Runs) -> list[Run]:
        """Return the runs that `query` selects, newest first by default, at most `query.limit` of them."""
        return await self._store.find(query)

    async def events(self, query: Events) -> list[Event]:
        """Return the events that `query` selects, oldest first, at most `query.limit` of them, without secrets."""
        return [mask_event(event) for event in await self._store.find(query)]

    async def open_cursor(self, place: str | None) -> LogCursor:
        """Return a cursor that reads the event log after the position `place`; None: only events from now on."""
        if place is not None:
            return open_cursor(self._store, place)
        found = open_cursor(self._store, str(max(0, await find_log_end(self._store) - MAX_LATE_EVENTS)))
        while len(await found.read(MAX_LATE_EVENTS)) >= MAX_LATE_EVENTS:
            pass  # it starts before the log's end and skips what is there, so that it finds events that commit late
        return found

    async def bodies(self, ids: Iterable[str | None]) -> dict[str, str]:
        """Return payloads: id → JSON text. A None in `ids` is ignored; ids without a stored payload are left out."""
        wanted = tuple({name for name in ids if name is not None})
        found = await self._store.find(Bodies(ids=wanted, limit=len(wanted))) if wanted else []
        return {body.id: body.data for body in found}

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False) -> list[bool]:
        """Store key-value entries. Return for each True if written, False if it exists and `replace` is False."""
        return await self._store.put(items, replace=replace)

    async def find_values(self, kind: str, ids: Iterable[str]) -> dict[str, KeyValue]:
        """Return the key-value entries of a kind with these ids: id → entry; ids without an entry are left out."""
        wanted = tuple(dict.fromkeys(ids))
        found = await self._store.find(KeyValues(kind=kind, ids=wanted, limit=len(wanted))) if wanted else []
        return {one.id: one for one in found}

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        """Remove the key-value entries of this kind with these ids, and return the number of entries removed."""
        return await self._store.remove(kind, ids)

    async def _count_open(self, schedule_id: str) -> OpenRuns:
        """Count a schedule's open runs, at most 10,000, and those of them that are not running; find the oldest one."""
        query = Runs(schedule_id=schedule_id, states=tuple(OPEN), limit=10_000, oldest_first=True)
        runs = await self._store.find(query)
        waiting = sum(run.state is not State.RUNNING for run in runs)
        return OpenRuns(len(runs), waiting, runs[0].id if runs else None)

    async def with_stored_secrets(self, want: ScheduleRequest, before: Schedule | None = None) -> ScheduleRequest:
        """Store the secrets of the HTTP agent in `want`, if any, and return `want` with a reference to them.

        `before` is the schedule that `want` replaces; None for a new one. Raises: InvalidInput (`store_agent_secrets`).
        """
        if agent_of(want.spec) is None:
            return want
        want = await store_agent_secrets(self._vault(), want, None if before is None else before.spec)
        return want if before is None else await move_agent_secrets(self._vault(), want, before)

    async def create(
        self, want: ScheduleRequest, on_conflict: OnConflict = "error", *, fresh: bool = False
    ) -> Schedule:
        """Create a schedule and return it; if the name exists with an equal definition, return the existing schedule.

        If the definitions differ, `on_conflict` decides: "keep" the existing one, "replace" it, or raise an "error".
        With `fresh`, an existing name is always an error. Raises: ScheduleConflict; InvalidInput for the name.
        """
        await check_new_names(self._store, (want,))
        want = await self.with_stored_secrets(want)
        for _ in range(MAX_WRITE_ATTEMPTS):
            found = await self._store.find(Schedules(ns=want.ns, name=want.name, limit=1))
            if found and fresh:
                raise name_taken(found[0], "Choose another name, or edit it")
            if found:
                with contextlib.suppress(RevisionConflict):  # renamed meanwhile, so the name is free
                    return await self._resolve_conflict(found[0], want, on_conflict)
                continue
            draft = self._new_schedule(want, self._time.now())
            if (await self._write(draft, want.bodies, want.gates)).ok:
                warn_of_mistakes(want, draft.schedule.anchor)
                return await self._stored(draft.schedule)
        raise StoreError(f"schedule {want.name!r} kept changing while it was created")

    async def _resolve_conflict(self, existing: Schedule, want: ScheduleRequest, on_conflict: OnConflict) -> Schedule:
        """Return the existing schedule; if the definitions differ, keep it, replace it, or raise ScheduleConflict."""
        spec = existing.spec
        if holds_query_values(spec):  # an earlier version stored it; compare it in the form that is stored now
            spec = (await self.with_stored_secrets(replace(want, spec=spec), existing)).spec
        is_equal = spec == want.spec or (existing.digest == want.digest and existing.revision == 1)
        if is_equal or on_conflict == "keep":
            return existing
        if on_conflict == "replace":
            return await self.replace(existing, want)
        fields = ", ".join(changed_fields(existing.spec, want.spec))
        raise ScheduleConflict(
            "name",
            f"a schedule called {want.name!r} exists with another definition (different: {fields})",
            'Choose another name, or say on_conflict="replace" or "keep"',
        )

    async def create_many(self, wants: list[ScheduleRequest], on_conflict: OnConflict = "error") -> int:
        """Create schedules in one commit, and return how many schedules this commit created.

        Names that exist are then handled as by `create`. If that raises ScheduleConflict, the created ones stay.
        """
        await check_new_names(self._store, wants)
        wants = [await self.with_stored_secrets(want) for want in wants]
        now = self._time.now()
        changes = [self._change(self._new_schedule(want, now), want.bodies, want.gates) for want in wants]
        results = await self._apply_many(changes)
        for want, result in zip(wants, results, strict=True):
            if not result.ok:
                await self.create(want, on_conflict)
        return sum(result.ok for result in results)

    def _new_schedule(self, want: ScheduleRequest, now: Ms) -> ScheduleDraft:
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
            draft.emit(SchedulePaused(ns=want.ns, schedule_id=draft.schedule.id, reason=storable_text(want.paused)))
        return draft

    async def replace(self, schedule: Schedule, want: ScheduleRequest, *, exactly: bool = False) -> Schedule:
        """Replace a schedule's definition and name with those of `want`, as a new revision, and return the schedule.

        An edit made since `schedule` was read is overwritten; with `exactly`, or if it was renamed since then, raise
        RevisionConflict instead. Raises: DeclaredInCode, ScheduleConflict or InvalidInput for a new name.
        """
        await check_rename(self._store, schedule, want.name)
        want = await self.with_stored_secrets(want, schedule)

        def decide_on(row: Schedule, open_runs: OpenRuns, now: Ms) -> ScheduleDraft:
            if row.name != schedule.name or (exactly and row.revision != schedule.revision):
                raise RevisionConflict(row.name)
            return update(
                row,
                open_runs,
                want.spec_at(now),
                now,
                origin=want.origin,
                by=want.by,
                version=want.version,
                digest=want.digest,
                name=None if want.name == schedule.name else want.name,
            )

        row = await self._edit(schedule, decide_on, want.bodies, want.gates)
        if _headers_ref(schedule) not in (None, _headers_ref(row)):
            await self._vault().retire(ref=_headers_ref(schedule))
        return row

    async def check_rename(self, schedule: Schedule, name: str) -> None:
        """Raise DeclaredInCode, ScheduleConflict or InvalidInput if the schedule cannot get the name `name`."""
        await check_rename(self._store, schedule, name)

    async def use_code(self, schedule: Schedule) -> Schedule:
        """Make the definition that code declared last the stored one, as a new revision; return the schedule.

        If the schedule has no edit of a person, return it unchanged. Raises: InvalidInput if no such definition is
        known.
        """
        declared = await self.definitions.find(schedule)
        if declared is None:
            fix = "Start the program that declares it once, and repeat" if schedule.app else "Edit or delete it instead"
            raise InvalidInput("schedule", f"no definition in code is known of {schedule.name!r}", fix)
        return await self.replace(schedule, request_of(schedule, declared)) if schedule.drifted else schedule

    async def pause(self, schedule: Schedule, *, reason: str = "paused", until: Ms | None = None) -> Schedule:
        """Pause a schedule until `until`; None: until resumed. Raises: InvalidInput if finished, or `until` is past."""
        if until is not None and until <= self._time.now():
            raise InvalidInput("until", "lies in the past", "Give an instant in the future, or none")
        if schedule.state == "finished":
            problem = f"{schedule.name!r} has finished ({schedule.reason}) and cannot be paused"
            raise InvalidInput("schedule", problem, "To continue it, change when it fires")
        text = storable_text(reason)
        return await self._edit(schedule, lambda row, runs, now: pause(row, runs, now, reason=text, until=until))

    async def resume(self, schedule: Schedule, *, reason: str = "") -> Schedule:
        """Resume a schedule if it is paused; return it in any case. Raises: UnknownSchedule if it was deleted."""
        return await self._edit(schedule, lambda row, open_, now: resume(row, now, reason=reason, known=open_.known))

    async def rewind(self, schedule: Schedule) -> Schedule:
        """Set a schedule that was planned ahead of the clock back to now, and return it; else return it unchanged.

        Raises: UnknownSchedule if it was deleted.
        """
        write = partial(self._write, bodies=(), gates=())
        return await self._stored(await rewind_schedule(self._store, self._time, write, schedule, MAX_WRITE_ATTEMPTS))

    async def delete(self, schedule: Schedule, *, reason: str = "user", exactly: bool = False) -> Schedule:
        """Delete a schedule, cancel its waiting runs, let its running ones end, and return the schedule.

        If more than `BATCH_RUNS` runs wait, the settler of an instance cancels the others, the oldest first.
        If it was edited after `schedule` was read, it is deleted all the same; with `exactly`, raise RevisionConflict.
        """

        def decide_on(row: Schedule, open_runs: OpenRuns, now: Ms) -> ScheduleDraft:
            if exactly and row.revision != schedule.revision:
                raise RevisionConflict(row.name)
            return delete(row, open_runs, now, reason=reason)

        row = await self._edit(schedule, decide_on)
        await cancel_waiting_runs(self._store, self._apply_many, self._change_id, row, self._time.now())
        if row.spec.task == HTTP_TASK:
            await self._vault().retire(ref=_headers_ref(row), schedule_id=row.id)
        return row

    async def trigger(self, schedule: Schedule, body: Body | None = None, *, by: str = "") -> Run:
        """Enqueue an extra run of a schedule for now, and return it. `body`: payload in place of the schedule's."""
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
        decide_on: Callable[[Schedule, OpenRuns, Ms], ScheduleDraft],  # (row, open runs, present time) → the edit
        bodies: tuple[Body, ...] = (),  # payloads that the new definition refers to
        gates: tuple[Gate, ...] = (),  # gates that it refers to
    ) -> Schedule:
        """Write the draft that `decide_on` returns, and return the new row; write nothing if the draft is empty."""
        row = schedule
        for _ in range(MAX_WRITE_ATTEMPTS):
            if row.state == "deleted":
                raise UnknownSchedule(f"the schedule {row.name!r} was deleted")
            now = await self._time.read()
            open_runs = replace(await self._count_open(row.id), known=await find_known_fires(self._store, row, now))
            draft = decide_on(row, open_runs, now)
            if not draft.changed:
                return row
            if (await self._write(draft, bodies, gates)).ok:
                if draft.cancels_open:
                    await self.cancel_older(draft)
                return await self._stored(draft.schedule)
            old_name, row = row.name, (await self._store.find(Schedules(id=row.id, limit=1)))[0]
            if draft.schedule.name != old_name:  # another schedule may have got the new name first
                await check_rename(self._store, row, draft.schedule.name)
        raise StoreError(f"schedule {row.name!r} kept changing while it was edited")

    async def _stored(self, schedule: Schedule) -> Schedule:
        """Return `schedule`, just written, with the store's times, or as it is if its row changed again or is gone."""
        found = await self._store.find(Schedules(id=schedule.id, limit=1))
        return found[0] if found and found[0].n == schedule.n else schedule

    async def cancel_older(self, draft: ScheduleDraft) -> None:
        """Request that the open runs that an accepted draft replaces be cancelled (overlap rule "cancel_running").

        These are the newest 1,000 open runs of the draft's schedule, without the runs that the draft itself adds.
        """
        new = {run.id for run in draft.runs}  # they replace the older runs (overlap "cancel_running")
        for run in await self._store.find(Runs(schedule_id=draft.schedule.id, states=tuple(OPEN), limit=1_000)):
            if run.cancel is None and run.id not in new:
                await self._command(run, RequestCancel("replaced by a newer fire", "overlap"))

    async def _write(self, draft: ScheduleDraft, bodies: tuple[Body, ...], gates: tuple[Gate, ...]) -> Result:
        return await self._apply(self._change(draft, bodies, gates))

    def _change(self, draft: ScheduleDraft, bodies: tuple[Body, ...], gates: tuple[Gate, ...]) -> Change:
        draft.bodies.extend(bodies)
        draft.gates.extend(gates)
        return draft.change(self._change_id())

    async def enqueue(self, new: NewRun) -> tuple[Run, bool]:
        """Store a run and return it, with True. If an open run has its unique key, return the open run, with False."""
        run, change = self.make_run_and_change(new)
        return stored_run(run, await self._apply(change))

    def make_run_and_change(self, new: NewRun) -> tuple[Run, Change]:
        """Return the new run, as its first event describes it, and the change that inserts it. Thread: any."""
        run = run_from_event(new.event)
        change = Change(
            id=self._change_id(),
            guard=RunAbsent(run.id, run.unique_key),
            run=run,
            bodies=new.bodies,
            gates=new.gates,
            events=(new.event,),
            kind="new_runs",
        )
        return run, change

    def make_insert_change(self, chunk: list[NewRun]) -> Change:
        """Return one change that inserts up to `MAX_ROWS_PER_COMMIT` runs, none with a unique key. Thread: any."""
        return Change(
            id=self._change_id(),  # without a guard, which alone would check unique keys
            runs=tuple(runs_from_events([new.event for new in chunk])),
            bodies=tuple({body.id: body for new in chunk for body in new.bodies}.values()),
            gates=tuple({gate.name: gate for new in chunk for gate in new.gates}.values()),
            events=tuple([new.event for new in chunk]),
            kind="new_runs",
        )

    async def cancel(self, run_id: str, *, reason: str, by: str = "") -> Run:
        """Cancel a waiting run, or ask a running one to stop, and return it; an ended run is returned unchanged."""
        run = await self.run(run_id)
        if run.state not in OPEN:
            return run
        return await self._command(run, RequestCancel(storable_text(reason), by))

    async def reopen(self, run_id: str, *, by: str = "") -> Run:
        """Make a failed, lost or cancelled run wait again, with its id, fire time and full retry budgets; return it."""
        return await self._command(await self.run(run_id), Reopen(by))

    async def discard(self, run_id: str, *, by: str = "") -> Run:
        """Dismiss a dead letter and return its run, which stays failed or lost but is no longer a dead letter."""
        return await self._command(await self.run(run_id), Discard(by))

    async def _command(self, run: Run, command: Command) -> Run:
        """Apply a command to a run and return the new row. If the row changes meanwhile, decide again on the new row.

        A run that has ended by then is not cancelled. Raises: IllegalTransition; InvalidInput; UnknownRun; StoreError.
        """
        for _ in range(MAX_WRITE_ATTEMPTS):
            change = self._decide_change(run, command)
            after = change.run
            assert after is not None
            done = (await self._apply(change)).ok
            before, run = run, await self._find_run(run.ns, run.id)
            if not done and run.n == before.n and run.unique_key is not None:
                raise InvalidInput(
                    "unique", f"{run.unique_key!r} is held by another open run", "Wait for it or cancel it"
                )
            if done:
                return run if run.n == after.n else after
            if isinstance(command, RequestCancel) and run.state not in OPEN:
                return run
        raise StoreError(f"run {run.id} kept changing")

    def _decide_change(self, run: Run, command: Command) -> Change:
        """Return the change that applies a command to a run. The store refuses it if the run has changed meanwhile."""
        events: tuple[RunEvent, ...] = decide(run, command, self._time.now())
        after = evolve(run, events[0])
        return Change(
            id=self._change_id(),
            guard=RunAt(run.id, run.n),
            run=after,
            events=events,
            touches=schedules_to_touch(after),
        )


def _headers_ref(schedule: Schedule) -> str | None:
    target = agent_of(schedule.spec)
    return None if target is None else target.headers_ref


def stored_run(run: Run, result: Result) -> tuple[Run, bool]:
    """Return the run that is stored after the insert of `run`, and True if that is `run` itself.

    `result`: the store's answer. If it refused the insert, return the open run with the same unique key, and False.
    """
    if result.ok:
        return run, True
    assert isinstance(result.current, Run)
    return result.current, False
