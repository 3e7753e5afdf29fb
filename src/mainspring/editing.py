"""Partial edits of a schedule: what is not named stays as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput, StoreError, nearest
from mainspring.model.http import HttpAgent
from mainspring.model.policies import RunOptions
from mainspring.model.schedule import Schedule
from mainspring.rules.definition import WhenAndHow, digest_of
from mainspring.rules.triggers import Cron, compile_trigger
from mainspring.service import RACES, Definition, Overtaken

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.task import BaseTask


class EditOptions(WhenAndHow, total=False):
    """What an edit may change: any of what a schedule is made of."""


_TRIGGERS = ("cron", "every", "at", "delay", "trigger")
_OPTIONS = ("timeout", "retry", "recovery", "window", "start_deadline", "on_exhausted")


async def edited(
    app: Mainspring,
    key: str,
    task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str | None,
    args: Iterable[Any] | None,
    kwargs: dict[str, Any] | None,
    payload: Any,
    changes: dict[str, Any],
) -> Schedule:
    """Read the schedule, lay the changes over it, write a new revision; again when another edit came first."""
    for _ in range(RACES):
        schedule = await app.get(key)
        want = _laid_over(app, schedule, task, args, kwargs, payload, changes)
        want = await _sealed(app, want)
        if msgspec.to_builtins(want.spec) == msgspec.to_builtins(schedule.spec):
            return schedule
        with contextlib.suppress(Overtaken):
            return await _written(app, schedule, want)
    raise StoreError(f"schedule {key!r} kept changing while it was edited")


async def _sealed(app: Mainspring, want: Definition) -> Definition:
    return want if want.agent is None else await app.call(lambda runtime: runtime.commands.sealed(want))


async def _written(app: Mainspring, schedule: Schedule, want: Definition) -> Schedule:
    return await app.call(lambda runtime: runtime.commands.replace(schedule, want, exactly=True))


def _laid_over(
    app: Mainspring,
    schedule: Schedule,
    task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str | None,
    args: Iterable[Any] | None,
    kwargs: dict[str, Any] | None,
    payload: Any,
    changes: dict[str, Any],
) -> Definition:
    old = schedule.spec
    called = None if old.options is None else old.options.http
    if task is None and called is not None:
        task_or_agent: Any = HttpAgent(called)
    else:
        task_or_agent = task if task is not None else old.task
    was_agent, is_agent = called is not None, isinstance(task_or_agent, HttpAgent)
    known = {*old.__struct_fields__, *_TRIGGERS, *_OPTIONS} - {"body", "gates", "options", "task"}
    for name in changes:
        if name not in known:
            raise InvalidInput(name, "is not a field of a schedule", nearest(name, sorted(known)))
    own_zone = any(isinstance(changes.get(name), Cron) for name in ("cron", "trigger"))
    asked = dict(changes) if own_zone else {"tz": old.tz, **changes}
    if not any(name in changes for name in _TRIGGERS):
        asked["trigger"] = compile_trigger(old.trigger, None)
    same_payload = args is None and kwargs is None and payload is UNSET and (task is None or (was_agent and is_agent))
    fresh = app._definition(
        schedule.name,
        task=task_or_agent,
        args=args if args is not None else (),
        kwargs=kwargs,
        payload=payload,
        with_payload=not same_payload,
        **asked,
    )
    kept: dict[str, Any] = {
        name: getattr(old, name)
        for name in old.__struct_fields__
        if name not in changes and name not in ("trigger", "task", "options", "gates", "body")
    }
    if same_payload:
        kept["body"] = old.body
    if "tz" in changes and not any(name in changes for name in _TRIGGERS):
        from mainspring.model.trigger import CronSpec

        if isinstance(old.trigger, CronSpec):
            kept["trigger"] = replace(old.trigger, tz=fresh.spec.tz)
    kept["options"] = _options(old.options, fresh.spec.options, changes)
    spec = replace(fresh.spec, **kept)
    return Definition(
        ns=fresh.ns,
        name=fresh.name,
        spec=spec,
        digest=schedule.digest if schedule.app else digest_of(spec),
        bodies=fresh.bodies if not same_payload else (),
        gates=fresh.gates,
        by="api",
        delay=fresh.delay,
        agent=fresh.agent,
    )


def _options(old: RunOptions | None, new: RunOptions | None, changes: dict[str, Any]) -> RunOptions | None:
    merged = old or RunOptions()
    fresh = new or RunOptions()
    taken = {name: getattr(fresh, name) for name in _OPTIONS if name in changes}
    taken |= {
        "http": fresh.http,
        "rearm": fresh.rearm or merged.rearm,
        "tz": fresh.tz if "tz" in changes else merged.tz,
    }
    merged = replace(merged, **taken)
    return None if merged == RunOptions() else merged
