"""OpenAPI 3.1 document, made from the table of routes and the structs of request bodies and answers."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.api.descriptions import ANSWERS, BODIES, PARAMETERS, describe_field
from mainspring.api.problems import MEDIA_TYPE, Problem
from mainspring.api.route_table import ENDPOINTS, Endpoint
from mainspring.app.run_view import priority_name
from mainspring.model.http import HttpTarget
from mainspring.model.policies import ON_EXHAUSTED, RECOVERY
from mainspring.model.schedule import ScheduleSpec

#: Reference to the schema of a struct, with its name to be filled in.
SCHEMA_REF = "#/components/schemas/{name}"
#: A new schedule has exactly one of `WHEN_FIELDS`, which says when it fires, and one of `WHAT_FIELDS`: what it calls.
WHEN_FIELDS = ("cronExpression", "intervalMs", "at", "delayMs")
WHAT_FIELDS = ("agentUrl", "task")
#: Statuses of the problem documents that every route may answer with.
COMMON_STATUSES = (401, 403, 421, 422, 429, 503)
_STATUS_WORDS = {
    400: "The body is not JSON",
    401: "The key, or the token of a callback, is missing or not valid",
    403: "A page of another site sent the request",
    404: "There is no schedule or execution with this id",
    409: "The request does not fit the present state",
    412: "The schedule has changed since it was read",
    413: "The body is too large",
    415: "The content type is not JSON",
    421: "The service does not answer to this host name",
    422: "A field, parameter or header of the request is not valid",
    429: "Too many requests",
    503: "The store cannot be reached",
}
_EXAMPLE_SCHEDULE = {
    "name": "Daily Report Agent",
    "cronExpression": "0 9 * * *",
    "agentId": "report-agent-001",
    "agentUrl": "https://example.com/api/agent",
    "httpMethod": "POST",
    "headers": {"Authorization": "Bearer token123"},
    "payload": {"reportType": "daily"},
    "retryPolicy": {"maxAttempts": 3, "backoffMultiplier": 2, "initialDelayMs": 1000, "maxDelayMs": 30000},
    "enabled": True,
}
#: Examples of request bodies: by the name of the body's type, then by the name of the example.
EXAMPLES: dict[str, dict[str, Any]] = {
    "ScheduleCreate": {
        "agent": _EXAMPLE_SCHEDULE,
        "short": {
            "name": "Test Schedule",
            "cronExpression": "*/2 * * * *",
            "agentId": "test-001",
            "agentUrl": "http://mock-agent:5678",
            "httpMethod": "POST",
            "enabled": True,
        },
        "interval": {"name": "Poll", "intervalMs": "30s", "agentUrl": "https://example.com/poll", "overlap": "forbid"},
        "once": {"name": "Launch", "at": "2030-01-01T00:00:00Z", "agentUrl": "https://example.com/launch"},
    },
    "ScheduleUpdate": {
        "off": {"enabled": False},
        "later": {"cronExpression": "0 10 * * *", "timezone": "Europe/Berlin"},
    },
    "PauseBody": {"migration": {"reason": "migration", "until": "2030-01-01T00:00:00Z"}},
    "TriggerBody": {"override": {"payload": {"reportType": "weekly"}}},
    "CancelBody": {"why": {"reason": "no longer needed"}},
    "EmptyBody": {"nothing": {}},
    "ProgressBody": {"third": {"fraction": 0.33, "message": "page 1 of 3"}},
    "FailureBody": {"later": {"error": "the printer is out of paper", "retryAfter": 60}},
    "Any": {"result": {"pages": 3}},
}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document as JSON types. It is made once and then shared: callers must not change it."""
    kinds = _body_types()
    schemas, components = msgspec.json.schema_components(kinds, ref_template=SCHEMA_REF)
    by_kind = dict(zip([str(kind) for kind in kinds], schemas, strict=True))
    for name, schema in components.items():
        schema["description"] = inspect.cleandoc(schema["description"])
        if name in EXAMPLES:
            schema["examples"] = list(EXAMPLES[name].values())
        for field, described in schema.get("properties", {}).items():
            text = describe_field(name, field)
            if text is not None:
                described["description"] = text
    for field, value in create_defaults().items():
        components["ScheduleCreate"]["properties"][field]["default"] = value
    components["ScheduleCreate"]["allOf"] = [_one_of(WHEN_FIELDS), _one_of(WHAT_FIELDS)]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        if endpoint.documented:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": importlib.metadata.version("mainspring"),
            "description": "Schedules, their executions and the HTTP agents they call. Every planned fire is accounted "
            "for exactly once.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": name} for name in dict.fromkeys(e.tag for e in ENDPOINTS if e.documented)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "mainspring key create"},
                "callbackToken": {"type": "http", "scheme": "bearer", "description": "X-Callback-Token of the call"},
            },
        },
    }


def create_defaults() -> dict[str, Any]:
    """Return the defaults of a new schedule: name of a field → value.

    Left out are fields whose default depends: on what is called (`overlap`, `timeoutMs`) or on the configuration.
    """
    spec = {one.name: one.default for one in msgspec.structs.fields(ScheduleSpec)}
    return {
        "enabled": True,
        "httpMethod": HttpTarget("").method,
        "missed": spec["missed"],
        "graceMs": spec["grace"],
        "replayMax": spec["replay_max"],
        "replayAgeMs": spec["replay_age"],
        "jitterMs": spec["jitter"],
        "spreadMs": spec["spread"],
        "onExhausted": ON_EXHAUSTED[0],
        "terminal": spec["terminal"],
        "priority": priority_name(spec["priority"]),
        "queue": spec["queue"],
        "recovery": RECOVERY[0],
    }


def _one_of(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of an object that has exactly one of the fields `names`."""
    return {"oneOf": [{"required": [name]} for name in names]}


def _body_types() -> list[Any]:
    """Return the types that need a JSON schema: `Problem`, and each type of a request body or answer once."""
    found: dict[str, Any] = {str(Problem): Problem}
    for endpoint in ENDPOINTS:
        for kind in (endpoint.body, endpoint.answer):
            if kind is not None:
                found[str(kind)] = kind
    return list(found.values())


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """Describe a route for OpenAPI. The docstring of its handler becomes the description.

    `schemas`: `str` of the type of a body or answer → its JSON schema.
    """
    operation: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "summary": endpoint.summary,
        "description": inspect.cleandoc(endpoint.handler.__doc__ or ""),
        "tags": [endpoint.tag],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint.query), *_header_parameters(endpoint)],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.public:
        operation["security"] = []
    if endpoint.callback:
        operation["security"] = [{"callbackToken": []}]
    if endpoint.body is not None:
        examples = EXAMPLES.get(endpoint.body.__name__, {})
        operation["requestBody"] = {
            "description": _describe_body(endpoint.body),
            "required": endpoint.body_required,
            "content": {
                "application/json": {
                    "schema": schemas[str(endpoint.body)],
                    "examples": {name: {"value": value} for name, value in examples.items()},
                }
            },
        }
    return operation


def _describe_body(kind: Any) -> str:
    """Return what a request body of this type is: the first sentence of its docstring, or an entry of `BODIES`."""
    return BODIES.get(kind.__name__) or str(kind.__doc__).partition("\n")[0]


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Describe each parameter in the path of a route for OpenAPI."""
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS.get(name, ""),
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^/]+$"},
        }
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(kind: type[Struct]) -> list[dict[str, Any]]:
    """Describe each query parameter of a route for OpenAPI. `kind` is the struct whose fields are the parameters."""
    found: list[dict[str, Any]] = []
    for field in msgspec.structs.fields(kind):
        schema = msgspec.json.schema(field.type)
        if "anyOf" in schema:  # a parameter may be left out, but is never null
            parts = [part for part in schema.pop("anyOf") if part != {"type": "null"}]
            schema |= parts[0]
        if isinstance(schema.get("enum"), list):
            schema["enum"] = [word for word in schema["enum"] if word is not None]
        if field.default is not None:
            schema["default"] = field.default
        name = field.encode_name
        found.append(
            {"name": name, "in": "query", "required": False, "description": PARAMETERS.get(name, ""), "schema": schema}
        )
    return found


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Describe the request headers of a route for OpenAPI, by its flags `idempotent`, `if_match` and `resumes`."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    if endpoint.idempotent:
        text = "For a day, the same request with the same key gets the first answer again"
        found.append(("Idempotency-Key", text, {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}))
    if endpoint.if_match:
        found.append(("If-Match", "Refuse unless the schedule has this ETag", {"examples": ['"r1"']}))
    if endpoint.resumes:
        found.append(("Last-Event-ID", "Continue after the event with this id", {"examples": ["42"]}))
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string", **schema}}
        for name, text, schema in found
    ]


def _responses(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """Describe each answer of a route for OpenAPI, by status: success first, then problem documents.

    `schemas`: `str` of the type of a body or answer → its JSON schema. `/api/health` has its own body with 503, too.
    """
    good: dict[str, Any] = {"description": ANSWERS.get(endpoint.operation_id, endpoint.summary)}
    if endpoint.answer is not None:
        good["content"] = {endpoint.media_type: {"schema": schemas[str(endpoint.answer)]}}
    elif endpoint.media_type == "text/event-stream":
        good["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
    headers = _answer_headers(endpoint)
    if headers:
        good["headers"] = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    problem = {MEDIA_TYPE: {"schema": schemas[str(Problem)]}}
    bad = {
        str(status): {"description": _STATUS_WORDS[status], "content": problem}
        for status in sorted({*COMMON_STATUSES, *endpoint.problems})
    }
    if endpoint.path == "/api/health":  # the same body with both statuses
        bad["503"] = {"description": "Unhealthy", "content": good["content"]}
    return {str(endpoint.status): good, **bad}


def _answer_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers that a successful answer of a route may have: name → description."""
    found: dict[str, str] = {}
    if endpoint.status == 201:
        found["Location"] = "Path of the new schedule or execution"
    if endpoint.path.startswith("/api/schedules/{id}") and "executions" not in endpoint.path and endpoint.answer:
        found["ETag"] = "Revision of the schedule, and its state unless that is active"
    if endpoint.query is not None and "limit" in endpoint.query.__struct_fields__:
        found["Link"] = 'rel="next": the next page, if there is one'
    return found
