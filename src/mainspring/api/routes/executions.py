"""Routes of executions, which the code calls runs: list, read, cancel and retry."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.actions import run_action
from mainspring.api.callers import actor_of
from mainspring.api.context import Api, api_of, cut_page, json_response, page_response
from mainspring.api.parsing import parse_query
from mainspring.api.problems import Refused
from mainspring.api.routes.schedules import find_schedule
from mainspring.api.schemas import CancelBody, EmptyBody, ExecutionQuery, ExecutionView, NoQuery, OfScheduleQuery
from mainspring.api.views import attempt_views, decode_payload, execution_view, states_for
from mainspring.app.internals import queries_of
from mainspring.model.errors import UnknownRun
from mainspring.model.run import ENDED, Run
from mainspring.ports.store import Events, Runs

#: The most events of one execution that are read to list its attempts.
MAX_EVENTS = 10_000


async def executions_of_schedule(request: Request) -> Response:
    """List the executions of one schedule, newest first, in pages of `limit`.

    `status`: only executions in this status. `cursor`: taken from the Link of the previous page.
    """
    api = api_of(request)
    query = parse_query(request, OfScheduleQuery)
    schedule = await find_schedule(api, request.path_params["id"])
    return await _list(api, request, query, schedule.id)


async def list_executions(request: Request) -> Response:
    """List executions, also those of deleted schedules, newest first, in pages of `limit`.

    `scheduleId`: only executions of the schedule with this id or name. `status`: only executions in this status.
    `cursor`: taken from the Link of the previous page.
    """
    api = api_of(request)
    query = parse_query(request, ExecutionQuery)
    schedule_id = None if query.schedule_id is None else (await find_schedule(api, query.schedule_id, deleted=True)).id
    return await _list(api, request, query, schedule_id)


async def _list(api: Api, request: Request, query: OfScheduleQuery, schedule_id: str | None) -> Response:
    """Answer with a page of the executions of a schedule; `schedule_id` None: of all executions in the namespace."""
    query_runs = Runs(
        ns=api.ms.settings.namespace,
        schedule_id=schedule_id,
        states=None if query.status is None else states_for(query.status),
        limit=query.limit + 1,
        after=query.cursor,
    )
    found = await api.host.call(lambda runtime: runtime.commands.runs(query_runs))
    shown, link = cut_page(request, found, query.limit, lambda run: run.id)
    return page_response(request, [execution_view(run) for run in shown], [run.id for run in shown], link)


async def get_execution(request: Request) -> Response:
    """Read an execution by its id, with its payload and attempts."""
    api = api_of(request)
    parse_query(request, NoQuery)
    return json_response(await _detailed_view(api, await find_execution(api, request)))


async def cancel_execution(request: Request) -> Response:
    """Cancel a waiting execution at once; ask a running one to stop. The answer is 409 if the execution has ended."""

    async def action(api: Api, body: CancelBody) -> Response:
        run = await find_execution(api, request)
        if run.state in ENDED:
            raise Refused(409, "conflict", f"The execution has ended already ({execution_view(run).status})")
        reason, actor = body.reason or "cancelled", actor_of(request)
        run = await api.host.call(
            lambda runtime: runtime.commands.acting_as(actor).cancel(run.id, reason=reason, by=actor)
        )
        return json_response(await _detailed_view(api, run))

    return await run_action(request, CancelBody, action)


async def retry_execution(request: Request) -> Response:
    """Run a failed or cancelled execution again, with its own id and fire time and its full number of attempts.

    The answer is 409 if it is in another status.
    """

    async def action(api: Api, _: EmptyBody) -> Response:
        run, actor = await find_execution(api, request), actor_of(request)
        run = await api.host.call(lambda runtime: runtime.commands.acting_as(actor).reopen(run.id, by=actor))
        return json_response(await _detailed_view(api, run))

    return await run_action(request, EmptyBody, action)


async def find_execution(api: Api, request: Request) -> Run:
    """Return the run whose id is in the path of the request. Raises: UnknownRun if there is none."""
    run_id: str = request.path_params["id"]
    if not run_id.isprintable():
        raise UnknownRun("no execution has this id")
    return await queries_of(api.ms).find_run(run_id)


async def _detailed_view(api: Api, run: Run) -> ExecutionView:
    """Return the view of a run with its payload and attempts, which are read from the store."""
    asked = Events(run_id=run.id, limit=MAX_EVENTS)
    events = await api.host.call(lambda runtime: runtime.commands.events(asked))
    bodies = await api.host.call(lambda runtime: runtime.commands.bodies([run.body]))
    view = execution_view(run)
    view.payload = decode_payload(run.task, bodies.get(run.body or ""))
    view.attempt_details = attempt_views(events, run.task)
    return view
