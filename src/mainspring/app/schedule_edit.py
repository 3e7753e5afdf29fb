"""Schedule edit: apply a user's changes to a stored schedule, and write the result as a new revision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct

from mainspring.app.registry import Registry, ScheduleTarget
from mainspring.model.errors import StoreError
from mainspring.model.http import HTTP_TASK, HttpAgent
from mainspring.model.instant import duration_ms
from mainspring.model.schedule import Schedule
from mainspring.rules.definition import SpecTarget, WhenAndHow, amend, digest_of
from mainspring.service.commands import MAX_WRITE_ATTEMPTS, RevisionConflict
from mainspring.service.requests import ScheduleRequest

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost
    from mainspring.app.task import BaseTask


class EditOptions(WhenAndHow, total=False):
    """Options of a schedule that `ms.update` may change: all of them."""


class ScheduleEdit(Struct, frozen=True, kw_only=True):
    """Changes to a schedule. None or UNSET leaves the task, its arguments or the payload as they are.

    But either of `args` and `kwargs` replaces all arguments. With `task`, the old arguments are dropped; an agent in
    place of an agent keeps the payload.
    """

    task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str | None = None
    args: Iterable[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payload: Any = UNSET
    #: The schedule's new name; None: it keeps its name.
    name: str | None = None
    #: Options by name. An option that is absent stays as it is. The value None: the task's own value, else the default.
    options: Mapping[str, Any] = {}

    async def apply(self, host: EngineHost, registry: Registry, key: str, default_tz: str) -> Schedule:
        """Write a new revision of the schedule `key` (a name or id) unless it changes nothing; return the schedule.

        If another edit is stored first, the changes are applied to the schedule after that edit. New header values of
        an agent are stored in any case. `default_tz` is the zone if the edit removes the schedule's own. Raises:
        UnknownSchedule; UnknownTask; InvalidInput; StoreError if other edits were stored first too often.
        """
        namespace = host.settings.namespace
        for _ in range(MAX_WRITE_ATTEMPTS):
            schedule = await host.call(lambda runtime: runtime.commands.schedule(namespace, key))
            request = self.amend(schedule, registry, host, default_tz)
            await host.call(lambda runtime, old=schedule, name=request.name: runtime.commands.check_rename(old, name))  # type: ignore[misc]  # mypy cannot infer the defaults
            request = await host.call(
                lambda runtime, wanted=request, old=schedule: runtime.commands.with_stored_secrets(wanted, old)  # type: ignore[misc]  # mypy cannot infer the defaults
            )
            is_same = msgspec.to_builtins(request.spec) == msgspec.to_builtins(schedule.spec)
            if is_same and request.name == schedule.name:
                return schedule
            with contextlib.suppress(RevisionConflict):
                return await _replace(host, schedule, request)
        raise StoreError(f"schedule {key!r} kept changing while it was edited. Try again")

    def amend(self, schedule: Schedule, registry: Registry, host: EngineHost, default_tz: str) -> ScheduleRequest:
        """Return the request that writes `schedule` with these changes as a new revision; nothing is stored.

        `default_tz` is the zone if the edit removes the schedule's own. A schedule that code declares keeps the digest
        of its declaration. Why: the next start of the program then finds that a person edited the schedule.
        """
        target, spec_target = self._resolve_target(schedule, registry)
        options = {name: target.policies.get(name) if value is None else value for name, value in self.options.items()}
        spec = amend(
            schedule.spec,
            spec_target,
            options,
            name=registry.full_name(schedule.name),
            now=host.now(),
            default_tz=default_tz,
        )
        delay = self.options.get("delay")
        return ScheduleRequest(
            ns=host.settings.namespace,
            name=schedule.name if self.name is None else self.name,
            spec=spec,
            digest=schedule.digest if schedule.app else digest_of(spec),
            bodies=() if target.body is None else (target.body,),
            gates=target.gates,
            by="api",
            delay=None if delay is None else duration_ms(delay, field="delay"),
            agent=target.agent,
        )

    def _resolve_target(self, schedule: Schedule, registry: Registry) -> tuple[ScheduleTarget, SpecTarget]:
        """Return what the schedule's runs execute after the edit, and the part of it that the definition stores.

        If the edit has arguments or a payload, they replace the stored payload. Otherwise, the stored payload stays if
        the edit has no task, or replaces an agent by another agent.
        """
        old = schedule.spec
        called = None if old.options is None else old.options.http
        task: Any = self.task
        if task is None:
            task = old.task if called is None else HttpAgent(called)
        keeps_kind = self.task is None or (called is not None and isinstance(task, HttpAgent))
        keeps_payload = self.args is None and self.kwargs is None and self.payload is UNSET and keeps_kind
        args = self.args if self.args is not None else ()
        if self._is_independent_of_code(old.task, registry) and keeps_payload:
            return ScheduleTarget(task=old.task), SpecTarget(old.task, old.body, old.gates)
        target = registry.resolve_target(task, args, self.kwargs, self.payload, with_payload=not keeps_payload)
        spec_target = target.for_spec()
        return target, msgspec.structs.replace(spec_target, body=old.body) if keeps_payload else spec_target

    def _is_independent_of_code(self, task: str, registry: Registry) -> bool:
        """Return True if this edit of a schedule of `task` works in a program without the code of the task.

        An option that is None gets the task's own value, for which the code is needed.
        """
        needs_task = any(name in self.options and self.options[name] is None for name in ("priority", "queue"))
        return self.task is None and task not in registry.tasks and task != HTTP_TASK and not needs_task


async def _replace(host: EngineHost, schedule: Schedule, request: ScheduleRequest) -> Schedule:
    """Write `request` as a new revision of `schedule`. Raises: RevisionConflict if another edit was stored first."""
    return await host.call(lambda runtime: runtime.commands.replace(schedule, request, exactly=True))
