"""The OpenAPI 3.1 document, made from the table of routes and the structs that the routes read and answer."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.api.problems import MEDIA_TYPE, Problem
from mainspring.api.routes import ENDPOINTS, Endpoint

REF = "#/components/schemas/{name}"
#: What a new schedule has to say, by one field of each.
WHEN = ("cronExpression", "intervalMs", "at", "delayMs")
WHAT = ("agentUrl", "task")
#: Problems that every route may answer with.
COMMON = (401, 403, 421, 422, 429, 503)
_STATUS_WORDS = {
    400: "The body is not JSON",
    401: "A key is needed",
    403: "The key does not allow this",
    404: "There is no such thing",
    409: "It does not fit the present state",
    412: "The schedule has changed since it was read",
    413: "The body is too large",
    415: "The content type is not JSON",
    421: "This host is not served here",
    422: "Something in the request is not valid",
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
#: Name of a body → examples by name.
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
}


@cache
def document() -> dict[str, Any]:
    """The whole document."""
    kinds = _kinds()
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    by_kind = dict(zip([str(kind) for kind in kinds], schemas, strict=True))
    for name, schema in components.items():
        if name in EXAMPLES:
            schema["examples"] = list(EXAMPLES[name].values())
    components["ScheduleCreate"]["allOf"] = [_one_of(WHEN), _one_of(WHAT)]
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
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "mainspring key create"}},
        },
    }


def _one_of(names: tuple[str, ...]) -> dict[str, Any]:
    """Exactly one of these fields is given."""
    return {"oneOf": [{"required": [name]} for name in names]}


def _kinds() -> list[Any]:
    found: dict[str, Any] = {str(Problem): Problem}
    for endpoint in ENDPOINTS:
        for kind in (endpoint.body, endpoint.answer):
            if kind is not None:
                found[str(kind)] = kind
    return list(found.values())


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "summary": endpoint.summary,
        "description": (endpoint.handler.__doc__ or "").strip(),
        "tags": [endpoint.tag],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint.query), *_header_parameters(endpoint)],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.public:
        operation["security"] = []
    if endpoint.body is not None:
        examples = EXAMPLES.get(endpoint.body.__name__, {})
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": {
                "application/json": {
                    "schema": schemas[str(endpoint.body)],
                    "examples": {name: {"value": value} for name, value in examples.items()},
                }
            },
        }
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^/]+$"},
        }
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(kind: type[Struct]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for field in msgspec.structs.fields(kind):
        schema = msgspec.json.schema(field.type)
        if "anyOf" in schema:  # a parameter is left out, never null
            parts = [part for part in schema.pop("anyOf") if part != {"type": "null"}]
            schema |= parts[0]
        if isinstance(schema.get("enum"), list):
            schema["enum"] = [word for word in schema["enum"] if word is not None]
        if field.default is not None:
            schema["default"] = field.default
        found.append({"name": field.encode_name, "in": "query", "required": False, "schema": schema})
    return found


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[tuple[str, str, dict[str, Any]]] = []
    if endpoint.idempotent:
        text = "The same key with the same request gets the same answer again, for a day"
        found.append(("Idempotency-Key", text, {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}))
    if endpoint.if_match:
        found.append(("If-Match", "The ETag of the revision that is meant", {"examples": ['"r1"']}))
    if endpoint.resumes:
        found.append(("Last-Event-ID", "The id of the last event that was seen", {"examples": ["42"]}))
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string", **schema}}
        for name, text, schema in found
    ]


def _responses(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": endpoint.summary}
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
        for status in sorted({*COMMON, *endpoint.problems})
    }
    if endpoint.path == "/api/health":  # says how it is in both cases
        bad["503"] = {"description": "Unhealthy", "content": good["content"]}
    return {str(endpoint.status): good, **bad}


def _answer_headers(endpoint: Endpoint) -> dict[str, str]:
    found: dict[str, str] = {}
    if endpoint.status == 201:
        found["Location"] = "Where the new thing is"
    if endpoint.path.startswith("/api/schedules/{id}") and "executions" not in endpoint.path and endpoint.answer:
        found["ETag"] = "The revision"
    if endpoint.query is not None and "limit" in endpoint.query.__struct_fields__:
        found["Link"] = 'rel="next": the page after this one, if there is one'
    return found
