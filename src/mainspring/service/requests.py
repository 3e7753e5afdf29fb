"""What callers ask `Commands` to store: a run to enqueue, a schedule to create or replace."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.declared_definitions import DeclaredDefinition
from mainspring.model.change import Body
from mainspring.model.events import RunScheduled
from mainspring.model.gate import Gate
from mainspring.model.http import HttpAgent
from mainspring.model.instant import Ms
from mainspring.model.schedule import Origin, Schedule, ScheduleSpec
from mainspring.model.trigger import AtSpec


class NewRun(Struct, frozen=True, gc=False):
    """A run to enqueue: its first event, the payload that the event refers to, and the gates to create for the run."""

    event: RunScheduled
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()


class ScheduleRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A schedule to create, or to replace an existing one: name, definition, origin, and payload and gates to store."""

    ns: str
    name: str
    spec: ScheduleSpec
    digest: str  # hash of the definition that code declares; if no code does, hash of `spec`
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    origin: Origin = "api"
    by: str = ""  # person, program or API key behind the request
    app: str = ""  # application whose code declares the schedule; "" if no code does
    version: str = ""  # version of that code
    delay: Ms | None = None  # time from the creation to the only fire; replaces the trigger
    paused: str | None = None  # the schedule is created paused, for this reason; None: it is created active
    agent: HttpAgent | None = None  # the HTTP agent, until its header values are stored: they must not get into the log
    any_name: bool = False  # the name comes from another scheduler, and need not be fit for a URL

    def spec_at(self, now: Ms) -> ScheduleSpec:
        """Return the definition to store at the instant `now`; a delay becomes one fire that long after `now`."""
        if self.delay is None:
            return self.spec
        return replace(self.spec, trigger=AtSpec((now + max(1, self.delay),)))

    def definition(self) -> DeclaredDefinition:
        """Return what this request of a program declares, to be stored beside the schedule."""
        return DeclaredDefinition(self.spec, self.digest, self.app, self.version, self.bodies, self.gates, self.delay)


def request_of(schedule: Schedule, definition: DeclaredDefinition) -> ScheduleRequest:
    """Return the request that makes what code declared about a schedule its definition again."""
    return ScheduleRequest(
        ns=schedule.ns,
        name=schedule.name,
        spec=definition.spec,
        digest=definition.digest,
        bodies=definition.bodies,
        gates=definition.gates,
        origin="code",
        by=f"code@{definition.version}",
        app=definition.app,
        version=definition.version,
        delay=definition.delay,
    )
