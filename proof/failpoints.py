"""Failpoints: named points in the life of a process at which a test lets the process die or a call fail.

Production code contains none of these names. Points inside a store are reached by its `failpoint` hook, which only a
test passes. Points between calls are wrapped around the store and the handlers from outside. The package `mainspring`
imports nothing from this module.

    MAINSPRING_FAILPOINT=materialise:before_commit:crash@2      crash when the point is reached for the second time

`crash` ends the process at the point (exit code 137, nothing is cleaned up). `crash_after` carries out the step after
the point and ends the process at the next point. `raise` lets the call fail, as if the store were unreachable.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, get_args

from mainspring.model.change import Change, RunAbsent, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.errors import InvalidInput, StoreUnavailable, suggest_nearest
from mainspring.model.events import Event, LeaseExpired, RunHandedBack, RunLost
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claimed,
    ClaimRequest,
    Due,
    Offer,
    Page,
    Query,
    Renewed,
    Store,
)

T = TypeVar("T")
Mode = Literal["crash", "crash_after", "raise"]
FAILPOINT_MODES: tuple[Mode, ...] = get_args(Mode)
FAILPOINT_VARIABLE = "MAINSPRING_FAILPOINT"
#: Exit code of a process that dies at a failpoint: that of `kill -9`, 128 + 9.
FAILPOINT_EXIT_CODE = 137

#: Every failpoint, with the state of the process and the store when it is reached.
FAILPOINT_MEANINGS: Mapping[str, str] = {
    "open:after_migrate": "the schema is there, the store has not answered yet",
    "declare:before_commit": "a declared schedule is written, not committed",
    "declare:ack_lost": "a declared schedule is committed, its instance has no answer yet",
    "enqueue:before": "ad-hoc work is about to be stored",
    "enqueue:before_commit": "ad-hoc work is written, not committed",
    "enqueue:ack_lost": "ad-hoc work is committed, the caller has no answer yet",
    "materialise:before_read": "the settler is about to read due schedules",
    "materialise:after_read": "due schedules are read, nothing is decided",
    "materialise:after_compute": "fires are decided, nothing is sent to the store",
    "materialise:tx_open": "the transaction for fires is open",
    "materialise:after_cas": "the cursor has moved, no fire is inserted",
    "materialise:after_fires": "fires are inserted, no event is",
    "materialise:after_event": "fires and events are written",
    "materialise:before_commit": "everything is written, nothing is committed",
    "materialise:ack_lost": "fires are committed, the settler has no answer yet",
    "unpark:before_commit": "parked runs are unparked, not committed",
    "unpark:ack_lost": "parked runs are unparked, the settler has no answer yet",
    "claim:before": "the worker is about to claim",
    "claim:tx_open": "the transaction for claims is open",
    "claim:after_update": "runs have owner, epoch and lease, no event is written",
    "claim:after_event": "claims and their events are written",
    "claim:before_commit": "everything is written, nothing is committed",
    "claim:ack_lost": "claims are committed, the store has not answered",
    "start:before": "the store has answered, the worker has not received the runs",
    "call:before_send": "the handler is about to be called",
    "call:after_response": "the handler has returned, its outcome is not recorded",
    "heartbeat:before": "leases are about to be renewed",
    "heartbeat:before_commit": "leases are renewed, not committed",
    "heartbeat:ack_lost": "leases are renewed, the worker has no answer yet",
    "complete:before": "outcomes are decided, nothing is sent to the store",
    "complete:tx_open": "the transaction for outcomes is open",
    "complete:after_guard": "runs have their outcome, no event is written",
    "complete:after_rows": "gates and touches are written too",
    "complete:after_event": "outcomes and their events are written",
    "complete:before_commit": "everything is written, nothing is committed",
    "complete:ack_lost": "outcomes are committed, the worker has no answer yet",
    "rescue:before": "a lease has ended, the verdict is decided",
    "rescue:before_commit": "the verdict is written, not committed",
    "rescue:ack_lost": "the verdict is committed, the settler has no answer yet",
    "release:before": "a stopping worker is about to hand runs back",
    "release:before_commit": "runs are handed back, not committed",
    "release:ack_lost": "runs are handed back, the worker has no answer yet",
    "leader:before_commit": "the leader's lease is written, not committed",
    "leader:after_acquire": "the leader's lease is held, nothing is done under it",
    "presence:before_commit": "the instance's row is written, not committed",
    "presence:ack_lost": "the instance's row is committed, the instance has no answer yet",
    "leave:before_commit": "a lease is released, not committed",
    "leave:ack_lost": "a lease is released, its owner has no answer yet",
    "purge:before_commit": "old rows are removed, not committed",
    "purge:ack_lost": "old rows are removed, the keeper has no answer yet",
}
FAILPOINTS: tuple[str, ...] = tuple(FAILPOINT_MEANINGS)

#: The step that a store passes to its hook → the step in the name of the failpoint.
_STEPS: Mapping[str, str] = {
    "begin": "tx_open",
    "after_guard": "after_guard",
    "after_update": "after_update",
    "after_rows": "after_rows",
    "after_events": "after_event",
    "before_commit": "before_commit",
    "after_commit": "ack_lost",
    "after_migrate": "after_migrate",
}
#: Name made of purpose and step → the name that `FAILPOINT_MEANINGS` has for it, where the two differ.
_RENAMED_POINTS: Mapping[str, str] = {
    "materialise:after_guard": "materialise:after_cas",
    "materialise:after_rows": "materialise:after_fires",
    "leader:ack_lost": "leader:after_acquire",
}


class FailpointTrigger:
    """Counts how often each failpoint is reached, and triggers a fault at one of them.

    `spec`: point, mode and count, as in `MAINSPRING_FAILPOINT`; None: no fault. `die` ends the process with an exit
    code.
    """

    def __init__(self, spec: str | None = None, *, die: Callable[[int], object] = os._exit) -> None:
        self.reached: Counter[str] = Counter()
        self.has_fired = False
        self._die = die
        self._dying = False
        self._lock = threading.Lock()
        self.point, self.mode, self.nth = _parse(spec) if spec else ("", "crash", 0)

    @classmethod
    def from_environment(cls) -> FailpointTrigger:
        """Return a trigger of the fault in `MAINSPRING_FAILPOINT`; without the variable it triggers none."""
        return cls(os.environ.get(FAILPOINT_VARIABLE))

    def reach(self, point: str) -> None:
        """Count that the failpoint `point` is reached. If the fault belongs to this point and count, trigger it.

        In the mode `crash`, this ends the process; in the mode `raise`, it raises StoreUnavailable. In the mode
        `crash_after`, the process ends at the first point after this one. An unknown point is ignored.
        """
        if point not in FAILPOINT_MEANINGS:
            return
        with self._lock:
            self.reached[point] += 1
            hit = point == self.point and self.reached[point] == self.nth
            self.has_fired = self.has_fired or hit
        if self._dying or (hit and self.mode == "crash"):
            self._die(FAILPOINT_EXIT_CODE)
        elif hit and self.mode == "crash_after":
            self._dying = True
        elif hit:
            raise StoreUnavailable(f"injected at {point}")

    def over(self) -> None:
        """End the process if `crash_after` was triggered and no point came after it: for the end of a program."""
        if self._dying:
            self._die(FAILPOINT_EXIT_CODE)

    def wrap_handler(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that calls `handler` between the points `call:before_send` and `call:after_response`."""
        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def call(*args: Any, **kwargs: Any) -> Any:
                self.reach("call:before_send")
                answer = await handler(*args, **kwargs)
                self.reach("call:after_response")
                return answer

        else:

            @functools.wraps(handler)
            def call(*args: Any, **kwargs: Any) -> Any:
                self.reach("call:before_send")
                answer = handler(*args, **kwargs)
                self.reach("call:after_response")
                return answer

        return call


#: Purposes of the store call that this task is making (see `change_purpose`). A store that works in a thread of its own
#: does not have the context of its caller. As it executes one call at a time, `FailingStore._doing` serves there.
_doing_here: ContextVar[tuple[str, ...] | None] = ContextVar("doing", default=None)


class FailingStore:
    """A store with failpoints around its methods and, by the store's own hook, inside them.

    `make` creates the wrapped store; its argument is the hook, which the store calls with the name of each step.
    """

    def __init__(self, make: Callable[[Callable[[str], None]], Store], trigger: FailpointTrigger) -> None:
        self._doing: tuple[str, ...] = ("open",)
        self._trigger = trigger
        self._store = make(self._inside)
        #: Every name with which the store has called the hook.
        self.raw: set[str] = set()

    def _inside(self, point: str) -> None:
        self.raw.add(point)
        step = _STEPS[point.partition(":")[2]]
        for doing in _doing_here.get() or self._doing:
            name = f"{doing}:{step}"
            self._trigger.reach(_RENAMED_POINTS.get(name, name))

    def _does(self, *doing: str) -> None:
        self._doing = doing
        _doing_here.set(doing)

    def _begin(self, doing: str, *points: str) -> None:
        self._does(doing)
        for point in points:
            self._trigger.reach(point)

    # ── the verbs ──────────────────────────────────────────────────────────

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def open(self) -> None:
        self._begin("open")
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        planning = agenda is Agenda.SCHEDULES
        self._begin("unpark" if agenda is Agenda.GATES else "due")
        if planning:
            self._trigger.reach("materialise:before_read")
        found = await self._store.due(agenda, limit, hold=hold, ahead=ahead, now=now)
        if planning and found.schedules:
            self._trigger.reach("materialise:after_read")
        return found

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        purposes = tuple(dict.fromkeys(change_purpose(change) for change in changes))
        self._does(*purposes)
        for doing in purposes:
            self._trigger.reach("materialise:after_compute" if doing == "materialise" else f"{doing}:before")
        applied = await self._store.apply(changes, claim_request=claim_request, now=now)
        if applied.claimed is not None and applied.claimed.claims:
            self._trigger.reach("start:before")
        return applied

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        self._begin("claim", "claim:before")
        claimed = await self._store.claim(offer, limit, ids=ids, now=now)
        if claimed.claims:
            self._trigger.reach("start:before")
        return claimed

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        self._begin("heartbeat", "heartbeat:before")
        return await self._store.renew(owner, leases, ttl, now=now)

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return await self._store.progress(run_id, epoch, text)

    async def find(self, query: Query[T]) -> list[T]:
        return await self._store.find(query)

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await self._store.tail(after, limit)

    async def lease(
        self,
        name: str,
        owner: str,
        ttl: Ms,
        *,
        epoch: int | None = None,
        data: str | None = None,
        now: Ms | None = None,
    ) -> Lease | None:
        self._begin("leader" if name.startswith("leader:") else "presence")
        return await self._store.lease(name, owner, ttl, epoch=epoch, data=data, now=now)

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        self._begin("leave")
        return await self._store.release(name, owner, epoch, now=now)

    async def wait(self, timeout: float) -> bool:
        return await self._store.wait(timeout)

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        await self._store.append_log(entries, limit)

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        self._begin("purge")
        return await self._store.purge(policy, limit, now=now)

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        self._begin("put")
        return await self._store.put(items, replace=replace, now=now)

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        self._begin("remove")
        return await self._store.remove(kind, ids)

    async def restore(self, page: Page) -> bool:
        return await self._store.restore(page)


def change_purpose(change: Change) -> str:
    """Return what a change is for, as in the first part of a failpoint's name; "other" if no failpoint is about it."""
    guard = change.guard
    if isinstance(guard, ScheduleAbsent):
        return "declare"
    if isinstance(guard, RunAbsent):
        return "enqueue"
    if isinstance(guard, ScheduleAt):
        return "materialise"
    if isinstance(guard, RunLease):
        if any(isinstance(event, LeaseExpired | RunLost) for event in change.events):
            return "rescue"
        if any(isinstance(event, RunHandedBack) for event in change.events):
            return "release"
        return "complete"
    return "other"


def _parse(spec: str) -> tuple[str, Mode, int]:
    """Parse "purpose:step:mode@n" into "purpose:step", mode and n; without "@n", n is 1. Raises: InvalidInput."""
    text, _, count = spec.partition("@")
    point, _, word = text.rpartition(":")
    if point not in FAILPOINT_MEANINGS:
        raise InvalidInput(
            FAILPOINT_VARIABLE, f"{point!r} is no failpoint", suggest_nearest(point, FAILPOINTS) or f"See {__name__}"
        )
    for mode in FAILPOINT_MODES:
        if mode == word:
            if count and (not count.isdigit() or int(count) < 1):
                raise InvalidInput(FAILPOINT_VARIABLE, f"@{count} is no count", "Write for example @2")
            return point, mode, int(count or 1)
    raise InvalidInput(FAILPOINT_VARIABLE, f"{word!r} is no mode", f"Use one of {', '.join(FAILPOINT_MODES)}")
