"""Routes of schedules: create, list, read, edit, delete, trigger, pause, resume, and rotate the signing secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.actions import run_action
from mainspring.api.callers import actor_of
from mainspring.api.context import Api, api_of, cut_page, json_response, page_response
from mainspring.api.idempotency import with_idempotency_key
from mainspring.api.long_durations import refuse_long_durations
from mainspring.api.parsing import convert_fields, convert_object, parse_json_object, parse_query
from mainspring.api.policy_input import parse_duration
from mainspring.api.problems import Fault, Refused, invalid_request
from mainspring.api.put_diff import changed_fields, find_read_only_faults
from mainspring.api.schedule_input import (
    ScheduleInput,
    check_min_interval,
    default_retry,
    exact_payload,
    http_body,
    parse_schedule,
    task_body,
)
from mainspring.api.schedule_lint import describe_mistakes, has_just_passed, refuse_never
from mainspring.api.schemas import (
    DriftView,
    EmptyBody,
    NoQuery,
    PauseBody,
    RotateBody,
    ScheduleCreate,
    ScheduleQuery,
    ScheduleUpdate,
    ScheduleView,
    SecretView,
    TriggerBody,
)
from mainspring.api.views import drift_view, execution_view, schedule_view
from mainspring.app.internals import http_agents_of, queries_of
from mainspring.model.errors import StoreError, UnknownSchedule
from mainspring.model.http import HTTP_TASK, HttpTarget
from mainspring.model.instant import instant_ms
from mainspring.model.schedule import Schedule, ScheduleSpec, ScheduleState
from mainspring.ports.store import Schedules
from mainspring.service.commands import MAX_WRITE_ATTEMPTS, RevisionConflict
from mainspring.service.requests import ScheduleRequest

#: Reason of a pause by `enabled: false`.
DISABLED = "disabled"


async def create_schedule(request: Request) -> Response:
    """Create a schedule. The answer is 409 if its name is taken.

    If the schedule calls an HTTP agent, the answer holds the signing secret of the calls. No later GET shows it.
    """
    api = api_of(request)
    parse_query(request, NoQuery)
    data = await api.body(request)
    given = parse_json_object(request, data)
    values, faults = convert_fields(given, ScheduleCreate)
    wanted = ScheduleCreate(**{"name": "", **values})
    actor = actor_of(request)

    async def answer() -> Response:
        payload = exact_payload(data)
        draft = parse_schedule(api.ms, wanted.name, wanted, payload, http_retry=api.http_retry, faults=faults)
        want = replace(draft.with_headers({}), paused=DISABLED if wanted.enabled is False else None, by=actor)
        check_min_interval(api, want.spec)
        refuse_never(want.spec, now := api.host.now())
        if has_just_passed(want.spec, now):
            want = replace(want, delay=0)
        warnings = await _check_address(api, want)
        schedule = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).create(want, fresh=True))
        view = await _view(api, schedule)
        view.warnings = [*(view.warnings or []), *warnings] or UNSET
        if schedule.spec.task == HTTP_TASK:
            view.signing_secret = await api.ms.signing_secret(schedule.id)
        return json_response(view, 201, {"Location": f"/api/schedules/{schedule.id}", **_etag(schedule)})

    return await with_idempotency_key(api.host, request, data, answer)


async def list_schedules(request: Request) -> Response:
    """List the namespace's schedules that are not deleted, oldest first, in pages of `limit`.

    `enabled=true`: only active ones; `enabled=false`: only paused and finished ones. `cursor`: taken from the Link of
    the previous page.
    """
    api = api_of(request)
    query = parse_query(request, ScheduleQuery)
    states: tuple[ScheduleState, ...] = ("active", "paused", "finished")
    if query.enabled is not None:
        states = ("active",) if query.enabled == "true" else ("paused", "finished")
    page = Schedules(ns=api.ms.settings.namespace, states=states, limit=query.limit + 1, after=query.cursor)
    found = await api.host.call(lambda runtime: runtime.commands.schedules(page))
    shown, link = cut_page(request, found, query.limit, lambda schedule: schedule.id)
    return page_response(request, await _views(api, shown), [row.id for row in shown], link)


async def get_schedule(request: Request) -> Response:
    """Read a schedule by its id or name. The answer is 404 if there is none, or if it was deleted."""
    api = api_of(request)
    parse_query(request, NoQuery)
    schedule = await find_schedule(api, request.path_params["id"])
    return json_response(await _view(api, schedule), headers=_etag(schedule))


async def update_schedule(request: Request) -> Response:
    """Change the fields that the request has; other fields stay. Fires that are due already are not affected.

    A read-only field may be sent back unchanged. With `If-Match`, the answer is 412 if the schedule has another
    revision. The answer is 409 for another `name` if it is taken, or if code declares the schedule.
    """
    api = api_of(request)
    parse_query(request, NoQuery)
    data = await api.body(request)
    given = parse_json_object(request, data)
    values, faults = convert_fields(given, ScheduleUpdate, read_only=READ_ONLY)
    edit = _Edit(wanted=ScheduleUpdate(**values), payload=exact_payload(data), actor=actor_of(request))
    for _ in range(MAX_WRITE_ATTEMPTS):
        try:
            schedule = await find_schedule(api, request.path_params["id"])
            _check_match(request, schedule)
        except (UnknownSchedule, Refused):
            if faults:  # a request that could never be right is not told about the schedule
                raise invalid_request(faults) from None
            raise
        view = await _view(api, schedule)
        left = await _without_shown_once(api, schedule, given)
        found = [*faults, *find_read_only_faults(left, view, READ_ONLY)]
        try:
            schedule, warnings = await _apply(api, schedule, view, edit, found)
        except RevisionConflict:
            continue  # edited by another caller meanwhile: repeat everything, and If-Match can refuse it
        view = await _view(api, schedule)
        view.warnings = [*(view.warnings or []), *warnings] or UNSET
        return json_response(view, headers=_etag(schedule))
    raise StoreError("the schedule kept changing while it was edited")


async def patch_schedule(request: Request) -> Response:
    """Change the fields that the request has; other fields stay. `null` removes an optional value.

    With `If-Match`, the answer is 412 if the schedule has another revision. The answer is 409 for another `name` if it
    is taken, or if code declares the schedule.
    """
    return await update_schedule(request)


async def delete_schedule(request: Request) -> Response:
    """Delete a schedule. Its waiting executions are cancelled, its running ones go on, and its history stays.

    If more than 500 executions wait, the others are cancelled after the answer, the oldest first. One that begins
    before that goes on like a running one.
    """
    api = api_of(request)
    parse_query(request, NoQuery)
    for _ in range(MAX_WRITE_ATTEMPTS):
        schedule = await find_schedule(api, request.path_params["id"])
        _check_match(request, schedule)
        if await _delete(api, schedule, actor_of(request), exactly="if-match" in request.headers):
            return Response(status_code=204)
    raise StoreError("the schedule kept changing while it was deleted")


async def trigger_schedule(request: Request) -> Response:
    """Execute a schedule now, in addition to its plan. `payload` replaces its payload for this execution."""
    api = api_of(request)
    parse_query(request, NoQuery)
    data = await api.body(request)
    wanted = convert_object(parse_json_object(request, data, optional=True), TriggerBody)
    actor = actor_of(request)

    async def answer() -> Response:
        schedule = await find_schedule(api, request.path_params["id"])
        body = None
        if wanted.payload is not UNSET:
            task = schedule.spec.task
            http = task == HTTP_TASK
            body = http_body(api.ms, exact_payload(data)) if http else task_body(api.ms, task, wanted.payload)
        run = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).trigger(schedule, body, by=actor))
        view = execution_view(await queries_of(api.ms).find_run(run.id))
        missing = await queries_of(api.ms).find_missing_worker(schedule.spec.task)
        view.warnings = [missing] if missing is not None else UNSET
        return json_response(view, 201, {"Location": f"/api/executions/{run.id}"})

    return await with_idempotency_key(api.host, request, data, answer)


async def pause_schedule(request: Request) -> Response:
    """Pause a schedule until it is resumed, or until the instant `until`. Its fires meanwhile do not run."""

    async def action(api: Api, body: PauseBody) -> Response:
        until = None if body.until is None else instant_ms(body.until, field="until")
        schedule = await find_schedule(api, request.path_params["id"])
        reason, actor = body.reason or "paused", actor_of(request)
        row = await api.host.call(
            lambda runtime: runtime.commands.acting_as(actor).pause(schedule, reason=reason, until=until)
        )
        return json_response(await _view(api, row), headers=_etag(row))

    return await run_action(request, PauseBody, action)


async def resume_schedule(request: Request) -> Response:
    """Resume a paused schedule. A schedule that is not paused stays as it is."""

    async def action(api: Api, _: EmptyBody) -> Response:
        schedule = await find_schedule(api, request.path_params["id"])
        actor = actor_of(request)
        row = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).resume(schedule))
        return json_response(await _view(api, row), headers=_etag(row))

    return await run_action(request, EmptyBody, action)


async def use_code(request: Request) -> Response:
    """Replace a person's edit of a schedule by the definition that code declared last. Without one, nothing changes.

    The answer is 409 if no program declared the schedule.
    """

    async def action(api: Api, _: EmptyBody) -> Response:
        schedule = await find_schedule(api, request.path_params["id"])
        if not schedule.app:
            raise Refused(409, "conflict", "No program declares the schedule, so there is no definition in code")
        actor = actor_of(request)
        row = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).use_code(schedule))
        return json_response(await _view(api, row), headers=_etag(row))

    return await run_action(request, EmptyBody, action)


async def rewind_schedule(request: Request) -> Response:
    """Set a schedule that a wrong clock planned ahead of the clock back to now. Another schedule stays as it is.

    Its fires from now on are executed again, except those that have an execution already.
    """

    async def action(api: Api, _: EmptyBody) -> Response:
        schedule = await find_schedule(api, request.path_params["id"])
        actor = actor_of(request)
        row = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).rewind(schedule))
        return json_response(await _view(api, row), headers=_etag(row))

    return await run_action(request, EmptyBody, action)


async def rotate_secret(request: Request) -> Response:
    """Make a new signing secret and show it once. For `overlapMs`, calls are signed with the old secret as well."""

    async def action(api: Api, body: RotateBody) -> Response:
        refuse_long_durations(body)
        schedule = await find_schedule(api, request.path_params["id"])
        if schedule.spec.task != HTTP_TASK:
            raise Refused(409, "conflict", "The schedule calls no HTTP agent; only calls to agents are signed")
        return json_response(
            SecretView(signing_secret=await api.ms.rotate_secret(schedule.id, overlap=parse_duration(body.overlap_ms)))
        )

    return await run_action(request, RotateBody, action)


# ── shared by the routes ─────────────────────────────────────────────────────────

#: Fields of an answer that a request cannot set.
READ_ONLY = frozenset(field.encode_name for field in msgspec.structs.fields(ScheduleView)) - frozenset(
    field.encode_name for field in msgspec.structs.fields(ScheduleUpdate)
)


async def find_schedule(api: Api, key: str, *, deleted: bool = False) -> Schedule:
    """Return the schedule whose id or name is `key`.

    Raises: UnknownSchedule if there is none, or if it was deleted and `deleted` is False.
    """
    if not key.isprintable():
        raise UnknownSchedule("no schedule has this id")
    schedule = await queries_of(api.ms).find_schedule(key)
    if schedule.state == "deleted" and not deleted:
        raise UnknownSchedule(f"the schedule {key!r} was deleted; its history is at /api/executions?scheduleId={key}")
    return schedule


async def _view(api: Api, schedule: Schedule) -> ScheduleView:
    """Return the view of one schedule, with a warning for each probable mistake in its definition."""
    view = (await _views(api, [schedule]))[0]
    view.warnings = [*(view.warnings or []), *describe_mistakes(schedule, api.host.now())] or UNSET
    return view


async def _views(api: Api, schedules: Sequence[Schedule]) -> list[ScheduleView]:
    """Return the views of schedules, with their payloads, which are read from the store."""
    bodies = await api.host.call(lambda runtime: runtime.commands.bodies(one.spec.body for one in schedules))
    views = [
        schedule_view(one, bodies.get(one.spec.body or ""), default_retry(api.ms, one.spec.task)) for one in schedules
    ]
    unserved = {} if api.host.runtime is None else api.host.runtime.unserved.found
    for one, view in zip(schedules, views, strict=True):
        if one.spec.task in unserved:
            view.warnings = [unserved[one.spec.task].describe()]
        if one.drifted:
            view.drift = await _find_drift(api, one)
    return views


async def _find_drift(api: Api, schedule: Schedule) -> DriftView | UnsetType:
    """Return how a schedule that a person edited differs from the code that declares it; UNSET if it does not."""
    drift = await api.host.call(lambda runtime: runtime.commands.definitions.find_drift(schedule))
    return UNSET if drift is None else drift_view(drift)


async def _without_shown_once(api: Api, schedule: Schedule, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given`, the fields of a PUT, without `warnings`, and without `signingSecret` if that secret is in force.

    Why: a client may edit the answer to its POST and send it as a PUT. A GET does not show these two fields, so they
    would be refused as read-only fields with wrong values.
    """
    left = {name: value for name, value in given.items() if name != "warnings"}
    if "signingSecret" in left and schedule.spec.task == HTTP_TASK:
        known = await api.host.call(lambda runtime: runtime.vault.secrets(schedule.id))
        if left["signingSecret"] in known:
            del left["signingSecret"]
    return left


async def _check_address(api: Api, want: ScheduleRequest, before: Schedule | None = None) -> list[str]:
    """Check the URL of the HTTP agent in `want`. Return one warning if its host has no address now, else an empty list.

    `before` is the schedule that is edited; None for a new one. An edit that keeps the URL is not checked. Raises:
    InvalidInput for a URL that this instance's settings forbid.
    """
    target, old = _target_of(want.spec), None if before is None else _target_of(before.spec)
    if target is None or (old is not None and old.url == target.url):
        return []
    return await http_agents_of(api.ms).check_url(target.url, field="agentUrl")


def _target_of(spec: ScheduleSpec) -> HttpTarget | None:
    """Return the HTTP agent that a definition calls; None if it calls a task."""
    return None if spec.options is None else spec.options.http


class _Edit(Struct, frozen=True, kw_only=True):
    """An edit that a request asks for: the fields of its body that have the right type, and the caller.

    `payload` is the exact JSON text of the payload, None if the request has none. `actor` is that of the events.
    """

    wanted: ScheduleUpdate
    payload: bytes | None
    actor: str


async def _apply(
    api: Api, schedule: Schedule, view: ScheduleView, edit: _Edit, faults: Sequence[Fault]
) -> tuple[Schedule, list[str]]:
    """Write the fields of an edit that differ from `view`; return the edited schedule, and warnings about its URL.

    `view` is the view of `schedule`. `faults` are mistakes that were found in the request before. A pause is written
    before the new definition, and a resume after it, so that no fire happens with half of the edit. Raises: Refused,
    with all mistakes; RevisionConflict if another caller has edited the definition since `schedule` was read.
    """
    actor = edit.actor
    changed = changed_fields(view, edit.wanted)
    enabled: bool | UnsetType = changed.enabled
    changed.enabled = UNSET
    if enabled is True and schedule.state == "finished" and changed == ScheduleUpdate():
        raise Refused(
            409, "conflict", f"The schedule has finished ({schedule.reason}); change when it fires to continue it"
        )
    draft: ScheduleInput | None = None
    warnings: list[str] = []
    if changed != ScheduleUpdate() or faults:
        name = schedule.name if changed.name is UNSET else changed.name
        draft = parse_schedule(api.ms, name, changed, edit.payload, schedule, http_retry=api.http_retry, faults=faults)
        await api.host.call(lambda runtime: runtime.commands.check_rename(schedule, name))  # before a pause is written
        check_min_interval(api, draft.want.spec)
        refuse_never(draft.want.spec, now := api.host.now(), schedule.spec)
        if draft.want.spec.trigger != schedule.spec.trigger and has_just_passed(draft.want.spec, now):
            draft = replace(draft, want=replace(draft.want, delay=0))
        warnings = await _check_address(api, draft.want, schedule)
    row = schedule
    if enabled is False:
        row = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).pause(row, reason=DISABLED))
    if draft is not None:
        row = await _replace(api, row, draft, actor)
    if enabled is True and row.state == "paused":
        row = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).resume(row))
    return row, warnings


async def _replace(api: Api, schedule: Schedule, draft: ScheduleInput, actor: str) -> Schedule:
    """Write the new definition in `draft`, with the stored header values that it keeps, and return the schedule.

    Raises: RevisionConflict if another caller has edited the schedule since it was read.
    """
    before = _target_of(schedule.spec)
    ref = None if before is None or not draft.kept_headers else before.headers_ref
    kept = await api.host.call(lambda runtime: runtime.vault.headers(ref))
    want = replace(draft.with_headers(kept or {}), by=actor)
    return await api.host.call(lambda runtime: runtime.commands.acting_as(actor).replace(schedule, want, exactly=True))


async def _delete(api: Api, schedule: Schedule, actor: str, *, exactly: bool) -> bool:
    """Delete a schedule and return True. `actor`: that of the events.

    With `exactly`, delete nothing and return False if the schedule no longer has the revision that was read.
    """
    try:
        await api.host.call(lambda runtime: runtime.commands.acting_as(actor).delete(schedule, exactly=exactly))
    except RevisionConflict:
        return False
    return True


def _etag(schedule: Schedule) -> dict[str, str]:
    """Return the header `ETag` for an answer about a schedule, such as `"r3"` or `"r3-paused"`.

    It is made from the revision and, unless the schedule is active, the state: neither changes when the schedule fires.
    """
    state = "" if schedule.state == "active" else f"-{schedule.state}"
    return {"ETag": f'"r{schedule.revision}{state}"'}


def _check_match(request: Request, schedule: Schedule) -> None:
    """Raise Refused, with 412, if the request has an `If-Match` that does not name the schedule's ETag."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return
    present = _etag(schedule)["ETag"]
    if present not in [tag.strip() for tag in given.split(",")]:
        raise Refused(
            412,
            "stale",
            f"The schedule is at {present}, not at {given}; read it and edit again",
            headers=_etag(schedule),
        )
