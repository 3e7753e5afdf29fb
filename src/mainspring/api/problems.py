"""Errors as RFC 9457 problem documents: what is wrong, where, and what would be right."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mainspring.model.errors import (
    IllegalTransition,
    InvalidCron,
    InvalidInput,
    PayloadTooLarge,
    ScheduleConflict,
    StoreError,
    UnknownRun,
    UnknownSchedule,
    UnknownTask,
    UnknownZone,
)

log = logging.getLogger("mainspring.api")

MEDIA_TYPE = "application/problem+json"
TYPES = "/api/errors/"
#: Kind of problem → its title; the kind is also the last part of `type`.
TITLES = {
    "malformed": "The body is not JSON",
    "invalid": "The request is not valid",
    "cron-invalid": "The cron expression is not valid",
    "zone-unknown": "The time zone is not known",
    "not-found": "There is no such thing",
    "method-not-allowed": "This method is not allowed here",
    "conflict": "The request does not fit the present state",
    "exists": "A schedule of this name exists",
    "stale": "The schedule has changed since it was read",
    "too-large": "The body is too large",
    "unsupported-media-type": "The content type is not JSON",
    "idempotency-in-flight": "A request with this key is being answered",
    "idempotency-mismatch": "The idempotency key was used for another request",
    "unavailable": "The store cannot be reached",
    "busy": "Too many streams are open",
    "internal": "Something went wrong here",
    "refused": "The request was refused",
}

#: The core's names of fields, as they are called on the wire.
_POINTERS = {
    "tz": "timezone",
    "trigger": "cronExpression",
    "cron": "cronExpression",
    "interval": "intervalMs",
    "every": "intervalMs",
    "anchor": "anchor",
    "times": "at",
    "time": "at",
    "at": "at",
    "delay": "delayMs",
    "gap": "dstGap",
    "grace": "graceMs",
    "replay_max": "replayMax",
    "replay_age": "replayAgeMs",
    "jitter": "jitterMs",
    "spread": "spreadMs",
    "start": "startAt",
    "end": "endAt",
    "max_runs": "maxRuns",
    "start_deadline": "startDeadlineMs",
    "on_exhausted": "onExhausted",
    "timeout": "timeoutMs",
    "arguments": "payload",
    "retry.max_attempts": "retryPolicy/maxAttempts",
    "retry.backoff": "retryPolicy/backoff",
    "retry.initial": "retryPolicy/initialDelayMs",
    "retry.base": "retryPolicy/backoffMultiplier",
    "retry.multiplier": "retryPolicy/backoffMultiplier",
    "retry.max_delay": "retryPolicy/maxDelayMs",
    "retry.jitter": "retryPolicy/jitter",
    "window.tz": "window/timezone",
    "url": "agentUrl",
    "method": "httpMethod",
}


class Fault(Struct, omit_defaults=True):
    """One mistake: in the body (`pointer`, an RFC 6901 fragment) or in a parameter or header (`parameter`)."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    suggestion: str | UnsetType = UNSET


class Problem(Struct, kw_only=True, rename="camel"):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[Fault] = []


class Refused(Exception):
    """A request that is answered with a problem document."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        errors: list[Fault] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = errors or []
        self.headers = headers or {}


def invalid(pointer: str, detail: str, suggestion: str = "") -> Refused:
    """One wrong value in the body."""
    return faulty([Fault(detail, pointer=pointer, suggestion=suggestion or UNSET)])


def faulty(faults: list[Fault]) -> Refused:
    """One or more wrong values."""
    return Refused(422, "invalid", said(faults), faults)


def said(faults: list[Fault]) -> str:
    """What is wrong, in a sentence for people who read only that."""
    first = faults[0]
    where = first.pointer.removeprefix("#/") if first.pointer else first.parameter or "body"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    suggestion = f". {first.suggestion}" if first.suggestion else ""
    return f"{where or 'body'}: {first.detail}{suggestion}{more}"


def request_id(request: Request) -> str:
    """The request's name in answers and logs: the caller's if it is a plain word, else a new one."""
    known: str | None = request.scope.setdefault("state", {}).get("request_id")
    if known is None:
        given = request.headers.get("x-request-id", "")
        known = given if re.fullmatch(r"[\w.:-]{1,64}", given) else f"req_{secrets.token_hex(6)}"
        request.scope["state"]["request_id"] = known
    return known


def answer(request: Request, refused: Refused) -> Response:
    """The problem document of a refusal."""
    problem = Problem(
        type=TYPES + refused.kind,
        title=TITLES[refused.kind],
        status=refused.status,
        detail=refused.detail,
        request_id=request_id(request),
        errors=refused.errors,
    )
    return Response(
        msgspec.json.encode(problem),
        refused.status,
        {"X-Request-Id": problem.request_id, "Cache-Control": "no-store", **refused.headers},
        MEDIA_TYPE,
    )


def refusal(error: Exception) -> Refused:
    """What an error of ours is to the caller; what is not ours tells nothing about the inside."""
    match error:
        case Refused():
            return error
        case HTTPException():
            kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
            detail = {404: "Nothing lives at this address", 405: "See the Allow header"}
            return Refused(
                error.status_code,
                kind,
                detail.get(error.status_code, error.detail),
                headers=dict(error.headers or {}),
            )
        case ScheduleConflict():
            return Refused(409, "exists", f"{error.problem}. {error.fix}", [_fault(error)])
        case InvalidCron():
            fault = Fault(
                f"field {error.field!r}: {error.problem}", pointer="#/cronExpression", suggestion=error.fix or UNSET
            )
            return Refused(422, "cron-invalid", said([fault]), [fault])
        case UnknownZone():
            return Refused(422, "zone-unknown", said([_fault(error)]), [_fault(error)])
        case PayloadTooLarge():
            return Refused(413, "too-large", said([_fault(error)]), [_fault(error)])
        case InvalidInput():
            return faulty([_fault(error)])
        case UnknownSchedule() | UnknownRun():
            return Refused(404, "not-found", str(error))
        case UnknownTask():
            return invalid("#/task", str(error))
        case IllegalTransition():
            return Refused(409, "conflict", str(error))
        case StoreError():
            log.warning("a request could not be answered: %s", error)
            return Refused(503, "unavailable", "Nothing was changed; try again", headers={"Retry-After": "1"})
    log.error("a request failed", exc_info=error)
    return Refused(500, "internal", "The log of the service has the details under this request id")


def _fault(error: InvalidInput) -> Fault:
    name = error.field
    wire = _POINTERS.get(name) or name.replace(".", "/").replace("[", "/").replace("]", "")
    return Fault(error.problem, pointer=f"#/{wire}", suggestion=error.fix or UNSET)


async def on_error(request: Request, error: Exception) -> Response:
    """The handler for every exception of the app."""
    return answer(request, refusal(error))


def as_plain(value: Any) -> Any:
    """Builtins of a struct; for comparing and storing."""
    return msgspec.to_builtins(value)
