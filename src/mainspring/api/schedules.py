"""Schedules over HTTP: create, list, read, edit, delete, trigger, pause, resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.acting import acted
from mainspring.api.base import Api, api_of, json_answer, page
from mainspring.api.comparing import changes, judge_read_only
from mainspring.api.drafting import Draft, check_pace, default_retry, drafted, exact_payload, http_body, task_body
from mainspring.api.idempotency import once
from mainspring.api.problems import Refused
from mainspring.api.reading import converted, json_object, query_of
from mainspring.api.schemas import (
    EmptyBody,
    NoQuery,
    PauseBody,
    ScheduleCreate,
    ScheduleQuery,
    ScheduleUpdate,
    ScheduleView,
    SecretView,
    TriggerBody,
)
from mainspring.api.views import execution_view, schedule_view
from mainspring.model.errors import StoreError, UnknownSchedule
from mainspring.model.http import HTTP_TASK, HttpTarget
from mainspring.model.instant import instant_ms
from mainspring.model.schedule import Schedule, ScheduleSpec, ScheduleState
from mainspring.ports.store import Schedules
from mainspring.service import RACES, Definition, Overtaken

#: The reason of a schedule that was switched off.
DISABLED = "disabled"


async def create_schedule(request: Request) -> Response:
    """A new schedule: 201, or 409 when the name is taken."""
    api = api_of(request)
    query_of(request, NoQuery)
    data = await api.body(request)
    given = json_object(request, data)
    wanted = converted(given, ScheduleCreate)

    async def answer() -> Response:
        draft = drafted(api.ms, wanted.name, wanted, exact_payload(data), http_retry=api.http_retry)
        want = replace(draft.with_headers({}), paused=DISABLED if wanted.enabled is False else None)
        check_pace(api, want.spec)
        warnings = await _checked_address(api, want)
        schedule = await api.ms.call(lambda runtime: runtime.commands.create(want, fresh=True))
        view = (await _views(api, [schedule]))[0]
        view.warnings = warnings or UNSET
        if schedule.spec.task == HTTP_TASK:
            view.signing_secret = await api.ms.signing_secret(schedule.id)
        return json_answer(view, 201, {"Location": f"/api/schedules/{schedule.id}", **_etag(schedule)})

    return await once(api.ms, request, data, answer)


async def list_schedules(request: Request) -> Response:
    """Schedules in the order of their creation."""
    api = api_of(request)
    query = query_of(request, ScheduleQuery)
    states: tuple[ScheduleState, ...] = ("active", "paused", "finished")
    if query.enabled is not None:
        states = ("active",) if query.enabled == "true" else ("paused", "finished")
    asked = Schedules(ns=api.ms.settings.namespace, states=states, limit=query.limit + 1, after=query.cursor)
    found = await api.ms.call(lambda runtime: runtime.commands.schedules(asked))
    shown, link = page(request, found, query.limit, lambda schedule: schedule.id)
    return json_answer(await _views(api, shown), headers=link)


async def get_schedule(request: Request) -> Response:
    """One schedule, by id or name."""
    api = api_of(request)
    query_of(request, NoQuery)
    schedule = await found_schedule(api, request.path_params["id"])
    return json_answer((await _views(api, [schedule]))[0], headers=_etag(schedule))


async def update_schedule(request: Request) -> Response:
    """Change what is named; only later fires are affected."""
    api = api_of(request)
    query_of(request, NoQuery)
    data = await api.body(request)
    given = json_object(request, data)
    wanted = converted(given, ScheduleUpdate, read_only=READ_ONLY)
    payload = exact_payload(data)
    for _ in range(RACES):
        schedule = await found_schedule(api, request.path_params["id"])
        _check_match(request, schedule)
        view = (await _views(api, [schedule]))[0]
        judge_read_only(await _without_once(api, schedule, given), view, READ_ONLY)
        try:
            schedule, warnings = await _edited(api, schedule, view, wanted, payload)
        except Overtaken:
            continue  # judged again on what is there now; If-Match refuses it then
        view = (await _views(api, [schedule]))[0]
        view.warnings = warnings or UNSET
        return json_answer(view, headers=_etag(schedule))
    raise StoreError("the schedule kept changing while it was edited")


async def delete_schedule(request: Request) -> Response:
    """Gone at once; what waits is cancelled, what runs ends, history stays."""
    api = api_of(request)
    query_of(request, NoQuery)
    for _ in range(RACES):
        schedule = await found_schedule(api, request.path_params["id"])
        _check_match(request, schedule)
        if await _deleted(api, schedule, exactly="if-match" in request.headers):
            return Response(status_code=204)
    raise StoreError("the schedule kept changing while it was deleted")


async def trigger_schedule(request: Request) -> Response:
    """One execution now, outside the plan."""
    api = api_of(request)
    query_of(request, NoQuery)
    data = await api.body(request)
    wanted = converted(json_object(request, data, optional=True), TriggerBody)

    async def answer() -> Response:
        schedule = await found_schedule(api, request.path_params["id"])
        body = None
        if wanted.payload is not UNSET:
            task = schedule.spec.task
            http = task == HTTP_TASK
            body = http_body(api.ms, exact_payload(data)) if http else task_body(api.ms, task, wanted.payload)
        run = await api.ms.call(lambda runtime: runtime.commands.trigger(schedule, body, by="api"))
        run = await api.ms.find_by_id(run.id)
        return json_answer(execution_view(run), 201, {"Location": f"/api/executions/{run.id}"})

    return await once(api.ms, request, data, answer)


async def pause_schedule(request: Request) -> Response:
    """Plan nothing more, until resumed or until an instant."""

    async def deed(api: Api, wanted: PauseBody) -> Response:
        until = None if wanted.until is None else instant_ms(wanted.until, field="until")
        schedule = await found_schedule(api, request.path_params["id"])
        reason = wanted.reason or "paused"
        row = await api.ms.call(lambda runtime: runtime.commands.pause(schedule, reason=reason, until=until))
        return json_answer((await _views(api, [row]))[0], headers=_etag(row))

    return await acted(request, PauseBody, deed)


async def resume_schedule(request: Request) -> Response:
    """Plan again."""

    async def deed(api: Api, _: EmptyBody) -> Response:
        schedule = await found_schedule(api, request.path_params["id"])
        row = await api.ms.call(lambda runtime: runtime.commands.resume(schedule))
        return json_answer((await _views(api, [row]))[0], headers=_etag(row))

    return await acted(request, EmptyBody, deed)


async def rotate_secret(request: Request) -> Response:
    """A new signing secret, shown once; for a day calls are signed with the old one, too."""

    async def deed(api: Api, _: EmptyBody) -> Response:
        schedule = await found_schedule(api, request.path_params["id"])
        if schedule.spec.task != HTTP_TASK:
            raise Refused(409, "conflict", "The schedule calls no HTTP agent; only calls of agents are signed")
        return json_answer(SecretView(signing_secret=await api.ms.rotate_secret(schedule.id)))

    return await acted(request, EmptyBody, deed)


# ── what they share ─────────────────────────────────────────────────────────

#: What is answered and cannot be set.
READ_ONLY = frozenset(field.encode_name for field in msgspec.structs.fields(ScheduleView)) - frozenset(
    field.encode_name for field in msgspec.structs.fields(ScheduleUpdate)
)


async def found_schedule(api: Api, key: str) -> Schedule:
    """A schedule that exists; a deleted one does not."""
    if not key.isprintable():
        raise UnknownSchedule("no schedule has this id")
    schedule = await api.ms.get(key)
    if schedule.state == "deleted":
        raise UnknownSchedule(f"the schedule {key!r} was deleted; its history is at /api/executions?scheduleId={key}")
    return schedule


async def _views(api: Api, schedules: Sequence[Schedule]) -> list[ScheduleView]:
    bodies = await api.ms.call(lambda runtime: runtime.commands.bodies(one.spec.body for one in schedules))
    return [
        schedule_view(one, bodies.get(one.spec.body or ""), default_retry(api.ms, one.spec.task)) for one in schedules
    ]


async def _without_once(api: Api, schedule: Schedule, given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only the first answer had, so that it can be sent back as it came."""
    left = {name: value for name, value in given.items() if name != "warnings"}
    if "signingSecret" in left and schedule.spec.task == HTTP_TASK:
        known = await api.ms.call(lambda runtime: runtime.vault.secrets(schedule.id))
        if left["signingSecret"] in known:
            del left["signingSecret"]
    return left


async def _checked_address(api: Api, want: Definition, before: Schedule | None = None) -> list[str]:
    """Refuse an agent that could never be called; what is only odd is a warning."""
    target, old = _target_of(want.spec), None if before is None else _target_of(before.spec)
    if target is None or (old is not None and old.url == target.url):
        return []
    return await api.ms.check_agent(target.url, field="agentUrl")


def _target_of(spec: ScheduleSpec) -> HttpTarget | None:
    return None if spec.options is None else spec.options.http


async def _edited(
    api: Api, schedule: Schedule, view: ScheduleView, wanted: ScheduleUpdate, payload: bytes | None
) -> tuple[Schedule, list[str]]:
    """Off before the rest and on after it, so that nothing fires in between that nobody wanted."""
    changed = changes(view, wanted)
    enabled: bool | UnsetType = changed.enabled
    changed.enabled = UNSET
    if enabled is True and schedule.state == "finished" and changed == ScheduleUpdate():
        raise Refused(409, "conflict", f"The schedule has finished ({schedule.reason}); edit when it fires to go on")
    draft: Draft | None = None
    warnings: list[str] = []
    if changed != ScheduleUpdate():
        draft = drafted(api.ms, schedule.name, changed, payload, schedule, http_retry=api.http_retry)
        check_pace(api, draft.want.spec)
        warnings = await _checked_address(api, draft.want, schedule)
    row = schedule
    if enabled is False:
        row = await api.ms.call(lambda runtime: runtime.commands.pause(row, reason=DISABLED))
    if draft is not None:
        row = await _replaced(api, row, draft)
    if enabled is True and row.state == "paused":
        row = await api.ms.call(lambda runtime: runtime.commands.resume(row))
    return row, warnings


async def _replaced(api: Api, schedule: Schedule, draft: Draft) -> Schedule:
    before = _target_of(schedule.spec)
    ref = None if before is None or not draft.keeps else before.headers_ref
    kept = await api.ms.call(lambda runtime: runtime.vault.headers(ref))
    want = draft.with_headers(kept or {})
    return await api.ms.call(lambda runtime: runtime.commands.replace(schedule, want, exactly=True))


async def _deleted(api: Api, schedule: Schedule, *, exactly: bool) -> bool:
    try:
        await api.ms.call(lambda runtime: runtime.commands.delete(schedule, exactly=exactly))
    except Overtaken:
        return False
    return True


def _etag(schedule: Schedule) -> dict[str, str]:
    return {"ETag": f'"r{schedule.revision}"'}


def _check_match(request: Request, schedule: Schedule) -> None:
    """`If-Match`: one of the named revisions must be in force."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return
    present = _etag(schedule)["ETag"]
    if present not in [tag.strip() for tag in given.split(",")]:
        raise Refused(
            412,
            "stale",
            f"The schedule is at {present}, not at {given}; read it and decide again",
            headers=_etag(schedule),
        )
