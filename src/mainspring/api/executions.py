"""Executions over HTTP: list, read with attempts, cancel, retry."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.acting import acted
from mainspring.api.base import Api, api_of, json_answer, page
from mainspring.api.problems import Refused
from mainspring.api.reading import query_of
from mainspring.api.schedules import found_schedule
from mainspring.api.schemas import CancelBody, EmptyBody, ExecutionQuery, ExecutionView, NoQuery, OfScheduleQuery
from mainspring.api.views import attempt_views, execution_view, payload_of, states_of
from mainspring.model.errors import UnknownRun
from mainspring.model.run import ENDED, Run
from mainspring.ports.store import Events, Runs

#: The events of one execution that are read for its attempts.
MAX_EVENTS = 10_000


async def executions_of_schedule(request: Request) -> Response:
    """Executions of one schedule, newest first."""
    api = api_of(request)
    query = query_of(request, OfScheduleQuery)
    schedule = await found_schedule(api, request.path_params["id"])
    return await _listed(api, request, query, schedule.id)


async def list_executions(request: Request) -> Response:
    """Executions, newest first; those of a deleted schedule too."""
    api = api_of(request)
    query = query_of(request, ExecutionQuery)
    return await _listed(api, request, query, query.schedule_id)


async def _listed(api: Api, request: Request, query: OfScheduleQuery, schedule_id: str | None) -> Response:
    asked = Runs(
        ns=api.ms.settings.namespace,
        schedule_id=schedule_id,
        states=None if query.status is None else states_of(query.status),
        limit=query.limit + 1,
        after=query.cursor,
    )
    found = await api.ms.call(lambda runtime: runtime.commands.runs(asked))
    shown, link = page(request, found, query.limit, lambda run: run.id)
    return json_answer([execution_view(run) for run in shown], headers=link)


async def get_execution(request: Request) -> Response:
    """One execution with its payload and attempts."""
    api = api_of(request)
    query_of(request, NoQuery)
    return json_answer(await _whole(api, await _found(api, request)))


async def cancel_execution(request: Request) -> Response:
    """End a waiting execution; ask a running one to stop."""

    async def deed(api: Api, wanted: CancelBody) -> Response:
        run = await _found(api, request)
        if run.state in ENDED:
            raise Refused(409, "conflict", f"The execution has ended already ({execution_view(run).status})")
        reason = wanted.reason or "cancelled"
        run = await api.ms.call(lambda runtime: runtime.commands.cancel(run.id, reason=reason, by="api"))
        return json_answer(await _whole(api, run))

    return await acted(request, CancelBody, deed)


async def retry_execution(request: Request) -> Response:
    """Run an ended execution again: the same one, with the same fire time."""

    async def deed(api: Api, _: EmptyBody) -> Response:
        run = await _found(api, request)
        run = await api.ms.call(lambda runtime: runtime.commands.reopen(run.id, by="api"))
        return json_answer(await _whole(api, run))

    return await acted(request, EmptyBody, deed)


async def _found(api: Api, request: Request) -> Run:
    run_id: str = request.path_params["id"]
    if not run_id.isprintable():
        raise UnknownRun("no execution has this id")
    return await api.ms.find_by_id(run_id)


async def _whole(api: Api, run: Run) -> ExecutionView:
    asked = Events(run_id=run.id, limit=MAX_EVENTS)
    events = await api.ms.call(lambda runtime: runtime.commands.events(asked))
    bodies = await api.ms.call(lambda runtime: runtime.commands.bodies([run.body]))
    view = execution_view(run)
    view.payload = payload_of(run.task, bodies.get(run.body or ""))
    view.attempt_details = attempt_views(events)
    return view
