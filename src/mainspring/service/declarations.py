"""Declarations: store the schedules that a program declares, and keep two programs from using one name.

Every instance says in its presence row which tasks and schedules it holds, each with its origin (`rules/origins.py`).
A program decides about its names while it has the lease `declaring:NAMESPACE`, so two programs that start at once
cannot both take a name. A name that another instance holds from other code is left alone: its schedule is not written,
its task is not offered. When the other is gone, the name is taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Literal

from msgspec import Struct

from mainspring.engine.declared_definitions import DeclaredDefinition
from mainspring.engine.locks.lease_term import escape_name_part
from mainspring.engine.loop import Loop
from mainspring.engine.presence import Instance, list_instances
from mainspring.engine.store_clock import StoreClock
from mainspring.model.events import DeclarationConflict, DeclarationTaken, Event
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings
from mainspring.ports.executor import Handler
from mainspring.ports.store import Schedules, Store
from mainspring.rules.drift import Drift
from mainspring.rules.origins import Conflict, Holder, Name, describe_conflicts, find_conflicts
from mainspring.rules.redeploy import LiveDeclaration, Verdict, judge_declaration, version_key
from mainspring.service.commands import Commands, RevisionConflict
from mainspring.service.definition_warnings import warn_of_mistakes
from mainspring.service.requests import ScheduleRequest

log = logging.getLogger("mainspring.engine")

#: The beginning of the name of the lease under which programs of one namespace decide about their names.
DECLARING_PREFIX = "declaring:"
#: Length of that lease in milliseconds: how long a crash in these few steps delays the start of other programs.
DECLARING_TTL_MS: Ms = 5_000
#: Seconds between two tries to take that lease.
RETRY_SECONDS = 0.05
#: Seconds between two looks at names that another program holds, and at schedules that differ from the code.
CHECK_INTERVAL_SECONDS = 5.0
#: Seconds to wait while there is neither; `declare` wakes the loop.
IDLE_SECONDS = 3_600.0


class Program(Struct, frozen=True):
    """What a program declares: definitions of schedules, and the origins of its tasks and schedules, by name."""

    requests: Mapping[str, ScheduleRequest] = {}
    task_origins: Mapping[str, str] = {}
    schedule_origins: Mapping[str, str] = {}
    #: What to do about a schedule that a person has edited: the edit stays, or the "code" replaces it.
    on_drift: Literal["keep", "code"] = "keep"


class Declarations(Loop):
    """Stores what the program declares, and takes over names when their holder is gone. Thread: engine loop."""

    name = "declarations"

    def __init__(
        self,
        store: Store,
        time: StoreClock,
        settings: Settings,
        owner: str,
        commands: Commands,
        handlers: MutableMapping[str, Handler],
        publish: Callable[[], Awaitable[object]],
        note: Callable[[Event], Awaitable[None]],
    ) -> None:
        """Declare for the instance `owner`.

        Handlers of tasks that another program holds are taken out of `handlers` meanwhile. `publish` writes the
        presence row of this instance, and `note` appends an event to the log.
        """
        super().__init__(IDLE_SECONDS)
        self._store = store
        self._time = time
        self._settings = settings
        self._owner = owner
        self._commands = commands
        self._handlers = handlers
        self._publish = publish
        self._note = note
        self._program = Program()
        self._writes = False
        #: Handlers of the tasks that another program holds, by task name.
        self._withheld: dict[str, Handler] = {}
        #: The names that another program holds.
        self.conflicts: dict[Name, Conflict] = {}
        #: Declared schedules whose stored definition a person edited, by name.
        self.drifts: dict[str, Drift] = {}

    # ── what this instance holds ───────────────────────────────────────────

    @property
    def digests(self) -> dict[str, str]:
        """The schedules that this instance declares and holds: name → digest of the declared definition."""
        return {name: one.digest for name, one in self._program.requests.items() if not self._is_refused(name, one)}

    @property
    def task_origins(self) -> dict[str, str]:
        """The tasks that this instance holds: name → origin."""
        return {name: one for name, one in self._program.task_origins.items() if ("task", name) not in self.conflicts}

    @property
    def schedule_origins(self) -> dict[str, str]:
        """The schedules that this instance holds: name → origin."""
        held = self.digests
        return {name: one for name, one in self._program.schedule_origins.items() if name in held}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each instance that holds names of this program, and for each schedule that differs from it."""
        conflicts = describe_conflicts(self.conflicts.values(), self._settings.lease_ttl)
        return (*conflicts, *(drift.describe() for drift in self.drifts.values()))

    def _is_refused(self, name: str, request: ScheduleRequest) -> bool:
        """Return True if another program holds the schedule `name`, or the task that it runs."""
        return ("schedule", name) in self.conflicts or ("task", request.spec.task) in self.conflicts

    def give_back_handlers(self) -> None:
        """Put the handlers that were withheld back into the table, because the engine has stopped."""
        self._handlers.update(self._withheld)
        self._withheld.clear()
        self.conflicts = {}

    # ── names ──────────────────────────────────────────────────────────────

    async def declare(self, program: Program, *, write: bool) -> None:
        """Decide about the names of `program`; with `write`, store the schedules that it holds. Raises: StoreError."""
        self._program, self._writes = program, write
        instances = await self._settle_names()
        if write:
            await self._store_schedules(tuple(program.requests), instances)
        self.wake()

    async def _settle_names(self) -> list[tuple[Lease, Instance]]:
        """Find the names that other programs hold, publish those that this one holds, and return the instances.

        Raises: StoreError.
        """
        own = _names(self._program.task_origins, self._program.schedule_origins)
        if not own:
            return await list_instances(self._store)
        name = DECLARING_PREFIX + escape_name_part(self._settings.namespace)
        while True:
            lease = await self._store.lease(name, self._owner, DECLARING_TTL_MS)
            if lease is None:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                instances = await list_instances(self._store)
                await self._judge(own, instances)
            finally:
                was_alone = await self._store.release(name, self._owner, lease.epoch)
            if was_alone:  # else the lease ended and another program decided at the same time: look again
                return instances

    async def _judge(self, own: Mapping[Name, str], instances: Sequence[tuple[Lease, Instance]]) -> None:
        """Find the conflicts about the names `own`, and publish the names that this program holds. Raises: StoreError.

        Handlers of refused tasks are withheld first. A name that is free again is noted, then published, and only then
        its task is offered: the log shows no run of it that was started before.
        """
        before = self.conflicts
        now = find_conflicts(own, before.keys(), self._find_holders(instances))
        for kind, name in now:
            if kind == "task" and name in self._handlers:
                self._withheld[name] = self._handlers.pop(name)
        await self._report_new([conflict for name, conflict in now.items() if name not in before])
        await self._report_free([conflict for name, conflict in before.items() if name not in now])
        self.conflicts = now
        try:
            await self._publish()
        except BaseException:  # what is not published is not held; the next round tries again
            self.conflicts = {**before, **now}
            raise
        for name in [name for name in self._withheld if ("task", name) not in now]:
            self._handlers[name] = self._withheld.pop(name)

    def _find_holders(self, instances: Sequence[tuple[Lease, Instance]]) -> list[Holder]:
        """Return the other instances of this namespace, with the names that they hold."""
        gone_before: Ms = self._time.now() - self._settings.lease_ttl
        return [
            Holder(
                lease.owner,
                one.app,
                one.version,
                _names(one.task_origins, one.schedule_origins),
                live=lease.live,
                recent=lease.live or lease.renewed_at > gone_before,
            )
            for lease, one in instances
            if lease.owner != self._owner and one.namespace == self._settings.namespace
        ]

    async def _report_new(self, new: Sequence[Conflict]) -> None:
        """Log and note conflicts that are new. Raises: StoreError."""
        ns = self._settings.namespace
        for line in describe_conflicts(new, self._settings.lease_ttl):
            log.error("%s", line)
        for conflict in new:
            kind, name = conflict.name
            await self._note(
                DeclarationConflict(
                    ns=ns,
                    name=name,
                    declared=self._settings.version,
                    live=conflict.holder.version,
                    kind=kind,
                    instance=self._owner,
                    holder=conflict.holder.instance,
                    origin=conflict.origin,
                    held_by=conflict.held_by,
                )
            )

    async def _report_free(self, free: Sequence[Conflict]) -> None:
        """Log and note former conflicts about names that no other program holds any more. Raises: StoreError."""
        for conflict in free:
            kind, name = conflict.name
            log.warning("the %s %r is free: this program takes it over (%s)", kind, name, conflict.origin)
            await self._note(DeclarationTaken(ns=self._settings.namespace, name=name, kind=kind, instance=self._owner))

    # ── schedules ──────────────────────────────────────────────────────────

    async def _store_schedules(self, names: Iterable[str], instances: Sequence[tuple[Lease, Instance]]) -> None:
        """Store those of the declared schedules `names` that this program holds, and report drifts. Raises: StoreError.

        The definitions are also stored beside the schedules, so that `use_code` finds them later.
        """
        others = [
            one
            for lease, one in instances
            if lease.live and lease.owner != self._owner and one.app == self._settings.app
        ]
        applied: dict[str, DeclaredDefinition] = {}
        for name in names:
            want = self._program.requests[name]
            if self._is_refused(name, want):
                continue
            live = tuple(LiveDeclaration(one.version, one.declares[name]) for one in others if name in one.declares)
            if await self._store_schedule(want, live) != "conflict":
                applied[name] = want.definition()
        await self._commands.definitions.keep(self._settings.namespace, applied)

    async def _store_schedule(self, want: ScheduleRequest, live: tuple[LiveDeclaration, ...]) -> Verdict:
        """Create, update or resume a schedule as code declares it, and return the verdict of `judge_declaration`.

        `live`: what other live instances declare. On "conflict" (a live instance of newer code declares it
        differently), only append a `DeclarationConflict` event. Raises: StoreError.
        """
        commands = self._commands
        found = await self._store.find(Schedules(ns=want.ns, name=want.name, limit=1))
        existing = found[0] if found else None
        verdict = judge_declaration(existing, want.digest, want.version, live, self._program.on_drift)
        if existing is None:
            if verdict == "create":
                await commands.create(want, on_conflict="keep")
            return verdict
        if verdict == "resume" or (verdict == "drift" and _is_undeclared(existing)):
            await commands.resume(existing, reason="declared again")
        elif verdict == "update":
            warn_of_mistakes(want, self._time.now())
            try:
                row = await commands.replace(existing, want)
            except RevisionConflict:  # renamed meanwhile
                return await self._store_schedule(want, live)
            if _is_undeclared(row):
                await commands.resume(row, reason="declared again")
        elif verdict == "conflict":
            newest = max((one.version for one in live), key=version_key)
            await self._note(
                DeclarationConflict(
                    ns=want.ns, schedule_id=existing.id, name=want.name, declared=want.version, live=newest
                )
            )
        if verdict in ("nothing", "resume", "drift") and await self._find_drift(existing, want):
            log.warning("%s", self.drifts[want.name].describe())
        return verdict

    async def _find_drift(self, schedule: Schedule, want: ScheduleRequest) -> bool:
        """Remember whether a person's edit makes a stored schedule differ from the code, and return that."""
        drift = await self._commands.definitions.find_drift(schedule, want.spec)
        self.drifts.pop(want.name, None)
        if drift is not None:
            self.drifts[want.name] = drift
        return drift is not None

    # ── the loop ───────────────────────────────────────────────────────────

    async def run_once(self) -> float:
        """Take over names that are free, and look whether drifts have ended. Return the seconds to wait.

        Without a conflict and a drift, the store is not asked. Raises: StoreError.
        """
        if self.conflicts:
            own = {name: one.origin for name, one in self.conflicts.items()}
            still = find_conflicts(own, own.keys(), self._find_holders(await list_instances(self._store)))
            if still.keys() != own.keys():
                await self._take_over()
        for name in list(self.drifts):
            want = self._program.requests[name]
            found = await self._store.find(Schedules(ns=want.ns, name=name, limit=1))
            if not found or not await self._find_drift(found[0], want):
                self.drifts.pop(name, None)
        return CHECK_INTERVAL_SECONDS if self.conflicts or self.drifts else IDLE_SECONDS

    async def _take_over(self) -> None:
        """Decide about the names again, and store the schedules that this program did not hold before."""
        held = self.digests
        instances = await self._settle_names()
        if self._writes:
            await self._store_schedules([name for name in self.digests if name not in held], instances)


def _is_undeclared(schedule: Schedule) -> bool:
    """Return True if a schedule was paused automatically, because no live instance declared it any more."""
    return schedule.state == "paused" and schedule.reason == "not_declared"


def _names(tasks: Mapping[str, str], schedules: Mapping[str, str]) -> dict[Name, str]:
    """Return the origins of tasks and schedules as one table."""
    found: dict[Name, str] = {("task", name): origin for name, origin in tasks.items()}
    found.update({("schedule", name): origin for name, origin in schedules.items()})
    return found
