"""Table of routes. The app and the OpenAPI document are made from it, and tests of access rights read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from mainspring.agents.callbacks import CallbackReply
from mainspring.api.routes import callbacks, echo, executions, health, run_logs, schedules
from mainspring.api.routes import events as stream
from mainspring.api.schemas import (
    CancelBody,
    EchoView,
    EmptyBody,
    ExecutionQuery,
    ExecutionView,
    FailureBody,
    HealthView,
    LogLineView,
    LogQuery,
    LogStreamQuery,
    NoQuery,
    OfScheduleQuery,
    PauseBody,
    ProgressBody,
    RotateBody,
    ScheduleCreate,
    ScheduleQuery,
    ScheduleUpdate,
    ScheduleView,
    SecretView,
    StreamQuery,
    TriggerBody,
)

Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(Struct, frozen=True, kw_only=True):
    """One method of one path: its handler, the access that it needs, and what the OpenAPI document says about it."""

    method: str
    path: str
    handler: Handler
    summary: str
    #: True: the route answers a caller without an API key.
    public: bool = False
    #: True: the caller sends the callback token of an attempt instead of an API key.
    callback: bool = False
    query: type[Struct] = NoQuery
    #: Type of the request body: a struct, `Any`, or None for no body.
    body: Any = None
    #: False: the body may be left out.
    body_required: bool = False
    status: int = 200
    #: Type of a successful answer: a struct, a list of a struct, or None for an empty answer.
    answer: Any = None
    media_type: str = "application/json"
    #: Statuses of problem documents, in addition to those in `openapi.COMMON_STATUSES`.
    problems: tuple[int, ...] = ()
    #: True: the route accepts the header `Idempotency-Key`.
    idempotent: bool = False
    #: True: the route accepts the header `If-Match`.
    if_match: bool = False
    #: True: the route accepts the header `Last-Event-ID` and continues after that event.
    resumes: bool = False
    #: False for pages and probes, which the OpenAPI document leaves out.
    documented: bool = True
    tag: str = "schedules"

    @property
    def operation_id(self) -> str:
        """The name of the route in the OpenAPI document: its handler's name in camelCase, such as createSchedule."""
        first, *rest = self.handler.__name__.split("_")
        return first + "".join(word.capitalize() for word in rest)


#: Statuses of the problem documents of a route with a JSON body.
BODY_PROBLEMS = (400, 413, 415)
SCHEDULE_PATH = "/api/schedules/{id}"
EXECUTION_PATH = "/api/executions/{id}"
ECHO_PATH = "/api/echo"
CALLBACK_PATH = "/api/callbacks/{run_id}"

#: Routes that every role serves; a planner or a worker serves only these.
PROBES: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/health",
        handler=health.liveness,
        summary="Whether the engine's thread answers",
        public=True,
        answer=HealthView,
        documented=False,
    ),
    Endpoint(
        method="GET",
        path="/ready",
        handler=health.readiness,
        summary="Whether the store answers, the engine's loops work and planning keeps up",
        public=True,
        answer=HealthView,
        documented=False,
    ),
)

ENDPOINTS: tuple[Endpoint, ...] = (
    *PROBES,
    Endpoint(
        method="POST",
        path="/api/schedules",
        handler=schedules.create_schedule,
        summary="Create a schedule",
        body=ScheduleCreate,
        body_required=True,
        status=201,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 409),
        idempotent=True,
    ),
    Endpoint(
        method="GET",
        path="/api/schedules",
        handler=schedules.list_schedules,
        summary="List schedules",
        query=ScheduleQuery,
        answer=list[ScheduleView],
    ),
    Endpoint(
        method="GET",
        path=SCHEDULE_PATH,
        handler=schedules.get_schedule,
        summary="Read a schedule, by id or name",
        answer=ScheduleView,
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=SCHEDULE_PATH,
        handler=schedules.update_schedule,
        summary="Change some fields of a schedule; only later fires are affected",
        body=ScheduleUpdate,
        body_required=True,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409, 412),
        if_match=True,
    ),
    Endpoint(
        method="PATCH",
        path=SCHEDULE_PATH,
        handler=schedules.patch_schedule,
        summary="Change some fields of a schedule; only later fires are affected",
        body=ScheduleUpdate,
        body_required=True,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409, 412),
        if_match=True,
    ),
    Endpoint(
        method="DELETE",
        path=SCHEDULE_PATH,
        handler=schedules.delete_schedule,
        summary="Delete a schedule; waiting executions are cancelled, history stays",
        status=204,
        problems=(404, 412),
        if_match=True,
    ),
    Endpoint(
        method="GET",
        path=f"{SCHEDULE_PATH}/executions",
        handler=executions.executions_of_schedule,
        summary="List executions of a schedule, newest first",
        query=OfScheduleQuery,
        answer=list[ExecutionView],
        problems=(404,),
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/trigger",
        handler=schedules.trigger_schedule,
        summary="Execute a schedule now, outside its plan",
        body=TriggerBody,
        status=201,
        answer=ExecutionView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/pause",
        handler=schedules.pause_schedule,
        summary="Pause a schedule",
        body=PauseBody,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/resume",
        handler=schedules.resume_schedule,
        summary="Resume a schedule",
        body=EmptyBody,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/use-code",
        handler=schedules.use_code,
        summary="Replace a person's edit by the definition in the code",
        body=EmptyBody,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/rewind",
        handler=schedules.rewind_schedule,
        summary="Set a schedule that a wrong clock planned ahead back to now",
        body=EmptyBody,
        answer=ScheduleView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{SCHEDULE_PATH}/rotate-secret",
        handler=schedules.rotate_secret,
        summary="Make a new signing secret; the old one signs beside it for a day",
        body=RotateBody,
        answer=SecretView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="GET",
        path="/api/executions",
        handler=executions.list_executions,
        summary="List executions, newest first",
        query=ExecutionQuery,
        answer=list[ExecutionView],
        tag="executions",
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path=EXECUTION_PATH,
        handler=executions.get_execution,
        summary="Read an execution with its attempts",
        answer=ExecutionView,
        problems=(404,),
        tag="executions",
    ),
    Endpoint(
        method="GET",
        path=f"{EXECUTION_PATH}/logs",
        handler=run_logs.read_logs,
        summary="Read the log of an execution",
        query=LogQuery,
        answer=list[LogLineView],
        problems=(404,),
        tag="executions",
    ),
    Endpoint(
        method="GET",
        path=f"{EXECUTION_PATH}/logs/stream",
        handler=run_logs.stream_logs,
        summary="Follow the log of an execution until it ends (server-sent events)",
        query=LogStreamQuery,
        media_type="text/event-stream",
        problems=(404, 503),
        resumes=True,
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{EXECUTION_PATH}/cancel",
        handler=executions.cancel_execution,
        summary="Cancel an execution",
        body=CancelBody,
        answer=ExecutionView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{EXECUTION_PATH}/retry",
        handler=executions.retry_execution,
        summary="Run a failed or cancelled execution again",
        body=EmptyBody,
        answer=ExecutionView,
        problems=(*BODY_PROBLEMS, 404, 409),
        idempotent=True,
        tag="executions",
    ),
    Endpoint(
        method="GET",
        path="/api/events/stream",
        handler=stream.stream_events,
        summary="Follow the events of the log (server-sent events)",
        query=StreamQuery,
        media_type="text/event-stream",
        problems=(404, 503),
        resumes=True,
        tag="events",
    ),
    Endpoint(
        method="POST",
        path=ECHO_PATH,
        handler=echo.echo,
        summary="Agent to try a schedule with: answers with the body that it receives",
        body=Any,
        answer=EchoView,
        problems=(413,),
        tag="service",
    ),
    Endpoint(
        method="GET",
        path="/api/health",
        handler=health.api_health,
        summary="Read the status of the service",
        public=True,
        answer=HealthView,
        tag="service",
    ),
    Endpoint(
        method="POST",
        path=f"{CALLBACK_PATH}/heartbeat",
        handler=callbacks.callback_heartbeat,
        summary="Agent: the work goes on",
        callback=True,
        answer=CallbackReply,
        problems=(404, 409, 413),
        tag="callbacks",
    ),
    Endpoint(
        method="POST",
        path=f"{CALLBACK_PATH}/progress",
        handler=callbacks.callback_progress,
        summary="Agent: how far the work is",
        callback=True,
        body=ProgressBody,
        answer=CallbackReply,
        problems=(400, 404, 409, 413),
        tag="callbacks",
    ),
    Endpoint(
        method="POST",
        path=f"{CALLBACK_PATH}/complete",
        handler=callbacks.callback_complete,
        summary="Agent: the work is done",
        callback=True,
        body=Any,
        answer=CallbackReply,
        problems=(404, 409, 413),
        tag="callbacks",
    ),
    Endpoint(
        method="POST",
        path=f"{CALLBACK_PATH}/fail",
        handler=callbacks.callback_fail,
        summary="Agent: the work failed",
        callback=True,
        body=FailureBody,
        answer=CallbackReply,
        problems=(400, 404, 409, 413),
        tag="callbacks",
    ),
)
