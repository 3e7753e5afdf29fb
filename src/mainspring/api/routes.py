"""The one table of routes: the app, the OpenAPI document and the access tests are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api import executions, health, schedules, stream
from mainspring.api.schemas import (
    CancelBody,
    EmptyBody,
    ExecutionQuery,
    ExecutionView,
    HealthView,
    NoQuery,
    OfScheduleQuery,
    PauseBody,
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
    """One method of one path, and everything that is documented about it."""

    method: str
    path: str
    handler: Handler
    summary: str
    #: Answers without a key.
    public: bool = False
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    #: False: nothing at all may be sent in place of the body.
    body_required: bool = False
    status: int = 200
    #: What is answered: a struct, a list of one, or nothing.
    answer: Any = None
    media_type: str = "application/json"
    #: Statuses of problems beside those that every route has.
    problems: tuple[int, ...] = ()
    idempotent: bool = False
    if_match: bool = False
    #: Goes on behind `Last-Event-ID`.
    resumes: bool = False
    #: Part of the API; pages are not.
    documented: bool = True
    tag: str = "schedules"

    @property
    def operation_id(self) -> str:
        """camelCase of the handler's name."""
        first, *rest = self.handler.__name__.split("_")
        return first + "".join(word.capitalize() for word in rest)


BODY = (400, 413, 415)
ONE = "/api/schedules/{id}"
RUN = "/api/executions/{id}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/api/schedules",
        handler=schedules.create_schedule,
        summary="Create a schedule",
        body=ScheduleCreate,
        body_required=True,
        status=201,
        answer=ScheduleView,
        problems=(*BODY, 409),
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
        path=ONE,
        handler=schedules.get_schedule,
        summary="Read a schedule, by id or name",
        answer=ScheduleView,
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=ONE,
        handler=schedules.update_schedule,
        summary="Change some fields of a schedule; only later fires are affected",
        body=ScheduleUpdate,
        body_required=True,
        answer=ScheduleView,
        problems=(*BODY, 404, 409, 412),
        if_match=True,
    ),
    Endpoint(
        method="DELETE",
        path=ONE,
        handler=schedules.delete_schedule,
        summary="Delete a schedule; waiting executions are cancelled, history stays",
        status=204,
        problems=(404, 412),
        if_match=True,
    ),
    Endpoint(
        method="GET",
        path=f"{ONE}/executions",
        handler=executions.executions_of_schedule,
        summary="List executions of a schedule, newest first",
        query=OfScheduleQuery,
        answer=list[ExecutionView],
        problems=(404,),
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{ONE}/trigger",
        handler=schedules.trigger_schedule,
        summary="Execute a schedule now, outside its plan",
        body=TriggerBody,
        status=201,
        answer=ExecutionView,
        problems=(*BODY, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{ONE}/pause",
        handler=schedules.pause_schedule,
        summary="Pause a schedule",
        body=PauseBody,
        answer=ScheduleView,
        problems=(*BODY, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{ONE}/resume",
        handler=schedules.resume_schedule,
        summary="Resume a schedule",
        body=EmptyBody,
        answer=ScheduleView,
        problems=(*BODY, 404, 409),
        idempotent=True,
    ),
    Endpoint(
        method="POST",
        path=f"{ONE}/rotate-secret",
        handler=schedules.rotate_secret,
        summary="Make a new signing secret; the old one signs beside it for a day",
        body=EmptyBody,
        answer=SecretView,
        problems=(*BODY, 404, 409),
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
    ),
    Endpoint(
        method="GET",
        path=RUN,
        handler=executions.get_execution,
        summary="Read an execution with its attempts",
        answer=ExecutionView,
        problems=(404,),
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{RUN}/cancel",
        handler=executions.cancel_execution,
        summary="Cancel an execution",
        body=CancelBody,
        answer=ExecutionView,
        problems=(*BODY, 404, 409),
        idempotent=True,
        tag="executions",
    ),
    Endpoint(
        method="POST",
        path=f"{RUN}/retry",
        handler=executions.retry_execution,
        summary="Run an ended execution again",
        body=EmptyBody,
        answer=ExecutionView,
        problems=(*BODY, 404, 409),
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
        method="GET",
        path="/api/health",
        handler=health.api_health,
        summary="How the service is",
        public=True,
        answer=HealthView,
        tag="service",
    ),
    Endpoint(
        method="GET",
        path="/health",
        handler=health.alive,
        summary="Whether the process answers at all",
        public=True,
        answer=HealthView,
        documented=False,
    ),
    Endpoint(
        method="GET",
        path="/ready",
        handler=health.ready,
        summary="Whether it does its work: the store answers, its loops run, planning keeps up",
        public=True,
        answer=HealthView,
        documented=False,
    ),
)
