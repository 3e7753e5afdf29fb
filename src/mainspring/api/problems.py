"""Problem documents (RFC 9457), the bodies of error answers: what is wrong, in which field, and what would be right."""

from __future__ import annotations

import logging
import re
import secrets

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mainspring.agents.callbacks import CallbackDenied, CallbackStale
from mainspring.api.wording import word_mistake, word_unknown_task
from mainspring.model.errors import (
    DeclaredInCode,
    IllegalTransition,
    InvalidCron,
    InvalidInput,
    OutcomeUnknown,
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
#: Start of `type`, before the kind of the problem.
TYPES = "/api/errors/"
#: Title by kind of problem; the kind is also the last part of `type`.
TITLES = {
    "malformed": "The body is not JSON",
    "invalid": "The request is not valid",
    "cron-invalid": "The cron expression is not valid",
    "zone-unknown": "The time zone is not known",
    "not-found": "Not found",
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
    "internal": "Unexpected error in the service",
    "callback-denied": "Callback token refused",
    "callback-stale": "The attempt is over",
    "refused": "The request was refused",
}

#: Name of a field in an `InvalidInput` → JSON pointer to it in a request body, without "#/". `_fault_from` derives the
#: pointer of any other field from its name.
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
    """One mistake in a request. `detail` says what is wrong, `suggestion` how to correct it.

    `pointer` is the place in the body as a JSON pointer (RFC 6901), such as "#/retryPolicy/jitter"; `parameter` is the
    name of a query parameter or header.
    """

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    suggestion: str | UnsetType = UNSET


class Problem(Struct, kw_only=True, rename="camel"):
    """Body of an error answer: a problem document (RFC 9457), with the extensions `requestId` and `errors`."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[Fault] = []


class Refused(Exception):
    """Raised to answer a request with an error: a problem document with `detail` and `errors`.

    `status` is the HTTP status. `kind` is a key of `TITLES`, which gives the title and the end of `type`. `headers` are
    additional headers of the answer: name → value.
    """

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


def invalid_field(pointer: str, detail: str, suggestion: str = "") -> Refused:
    """Return the refusal (422) of a request with a wrong value at `pointer`, a place in the body such as "#/name".

    `detail` says what is wrong, `suggestion` how to correct it; "": no suggestion.
    """
    return invalid_request([Fault(detail, pointer=pointer, suggestion=suggestion or UNSET)])


def invalid_request(faults: list[Fault]) -> Refused:
    """Return the refusal (422) of a request with the mistakes `faults`, of which there is at least one."""
    return Refused(422, "invalid", describe_faults(faults), faults)


def describe_faults(faults: list[Fault]) -> str:
    """Return the first of one or more mistakes, with its place and suggestion, and the number of the others.

    For example "name: is missing (and 2 more)".
    """
    first = faults[0]
    where = first.pointer.removeprefix("#/") if first.pointer else first.parameter or "body"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    suggestion = f". {first.suggestion}" if first.suggestion else ""
    return f"{where or 'body'}: {first.detail}{suggestion}{more}"


def request_id(request: Request) -> str:
    """Return the id of a request for answers and log lines: its X-Request-Id, or a new id.

    The header is used if it has 1 to 64 letters, digits or characters of `_.:-`. The id is stored in the request's
    state, so that each call for this request returns it.
    """
    known: str | None = request.scope.setdefault("state", {}).get("request_id")
    if known is None:
        given = request.headers.get("x-request-id", "")
        known = given if re.fullmatch(r"[\w.:-]{1,64}", given) else f"req_{secrets.token_hex(6)}"
        request.scope["state"]["request_id"] = known
    return known


def problem_response(request: Request, refused: Refused) -> Response:
    """Return the answer to `request` with the problem document of a refusal."""
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


def refusal_for(request: Request, error: Exception) -> Refused:
    """Return the refusal with which to answer when a route's handler raised `error`, by the type of `error`.

    A failure of the store (503) and an unexpected exception (500) are logged; the answer does not contain their texts.
    """
    match error:
        case Refused():
            return error
        case HTTPException():
            return _refusal_for_http(request, error)
        case InvalidInput():
            return refusal_for_mistake(error)
        case UnknownSchedule() | UnknownRun():
            return Refused(404, "not-found", str(error))
        case UnknownTask():
            return refusal_for_mistake(error)
        case IllegalTransition():
            return Refused(409, "conflict", str(error))
        case CallbackDenied():
            return Refused(401, "callback-denied", str(error), headers={"WWW-Authenticate": "Bearer"})
        case CallbackStale():
            return Refused(409, "callback-stale", str(error))
        case OutcomeUnknown():
            log.warning("%s: it is not known whether the change was stored: %s", _describe_request(request), error)
            detail = "It is not known whether the change was stored. Read the object before you repeat the request."
            return Refused(503, "unavailable", detail)  # without Retry-After: a repetition might act twice
        case StoreError():
            log.warning("%s: the store failed: %s", _describe_request(request), error)
            return Refused(503, "unavailable", "Nothing was changed; try again", headers={"Retry-After": "1"})
    log.error("%s: unexpected error", _describe_request(request), exc_info=error)
    return Refused(500, "internal", "The log of the service has the details under this request id")


def _describe_request(request: Request) -> str:
    """Return method, path and id of a request for a log line, with control characters of the path escaped."""
    return f"{request.method} {request.url.path!r} ({request_id(request)})"


def _refusal_for_http(request: Request, error: HTTPException) -> Refused:
    """Return the refusal for an error of Starlette's router: 404 for an unknown path, 405 for a wrong method."""
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
    headers = dict(error.headers or {})
    allowed = sorted(set(headers.get("Allow", "").split(", ")) - {"HEAD", ""})
    details = {
        404: f"No route {request.method} {request.url.path}; /api/docs lists the routes",
        405: f"{request.method} is not allowed here; use {' or '.join(allowed)}",
    }
    return Refused(error.status_code, kind, details.get(error.status_code, error.detail), headers=headers)


def refusal_for_mistake(error: InvalidInput | UnknownTask | Refused) -> Refused:
    """Return the refusal for a mistake in a request, worded for clients of the API.

    409 for a name that exists or that code declares, 413 for too large a payload, else 422. A `Refused` is returned
    unchanged.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, UnknownTask):
        return invalid_field("#/task", *word_unknown_task(error))
    fault = _fault_from(error)
    match error:
        case DeclaredInCode():
            return Refused(409, "conflict", f"{error.problem}. {error.fix}", [fault])
        case ScheduleConflict():
            return Refused(409, "exists", f"{error.problem}. {error.fix}", [fault])
        case InvalidCron():
            fault = Fault(f"field {error.field!r}: {error.problem}", "#/cronExpression", suggestion=fault.suggestion)
            return Refused(422, "cron-invalid", describe_faults([fault]), [fault])
        case UnknownZone():
            return Refused(422, "zone-unknown", describe_faults([fault]), [fault])
        case PayloadTooLarge():
            return Refused(413, "too-large", describe_faults([fault]), [fault])
    return invalid_request([fault])


def _fault_from(error: InvalidInput) -> Fault:
    """Return the `Fault` for an `InvalidInput`, with its fix as the suggestion.

    `_POINTERS` has the pointers of some fields. For any other field, the pointer is made from its name: "#/a/b/0" for
    "a.b[0]".
    """
    name = error.field
    wire = _POINTERS.get(name) or name.replace(".", "/").replace("[", "/").replace("]", "")
    problem, fix = word_mistake(error)
    return Fault(problem, pointer=f"#/{wire}", suggestion=fix or UNSET)


async def on_error(request: Request, error: Exception) -> Response:
    """Return the problem document for an exception. The app calls this when the handler of a route raises `error`."""
    return problem_response(request, refusal_for(request, error))
