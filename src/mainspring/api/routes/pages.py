"""HTML pages: the status of the service, and the documentation of its API. Also the OpenAPI document.

The pages contain no script and load nothing from other hosts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.context import api_of, json_response
from mainspring.api.openapi import document
from mainspring.api.parsing import parse_query
from mainspring.api.schemas import ExecutionView, NoQuery, ScheduleView
from mainspring.api.views import execution_view, schedule_view
from mainspring.config.settings import ServeSettings
from mainspring.ports.store import Runs, Schedules

_STYLE = """
:root{color-scheme:light dark;--ink:#1a1d21;--dim:#5b6470;--paper:#fff;--soft:#f3f5f7;--line:#d9dee3;--link:#0b5cad;
--good:#1a7f37;--bad:#b3261e;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--dim:#9aa4af;--paper:#15181c;--soft:#1e2328;--line:#333a42;
--link:#7db8ff;--good:#5fd37c;--bad:#ff8a80;--warn:#f0c060}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
a{color:var(--link)}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
ul.rows{list-style:none;margin:0;padding:0}
ul.rows li{display:flex;flex-wrap:wrap;gap:.1rem 1rem;padding:.5rem 0;border-top:1px solid var(--line)}
ul.rows strong{flex:1 1 12rem;overflow-wrap:anywhere}ul.rows span{flex:0 1 auto;overflow-wrap:anywhere}
.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
code,pre{font:.9rem/1.45 ui-monospace,monospace;background:var(--soft);border-radius:.25rem}
code{padding:.1rem .3rem;overflow-wrap:anywhere}pre{padding:.75rem;overflow-x:auto}
section{border-top:1px solid var(--line)}dl{margin:0}dt{font-weight:600;overflow-wrap:anywhere}
dd{margin:0 0 .5rem 1rem}
""".strip()
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STATE_CLASSES = {
    "success": "good",
    "failed": "bad",
    "retrying": "warn",
    "running": "good",
    "active": "good",
    "paused": "warn",
}


async def status_page(request: Request) -> Response:
    """Answer with the status page: this instance, the 50 oldest schedules and the 20 latest executions."""
    api = api_of(request)
    parse_query(request, NoQuery)
    ns = api.ms.settings.namespace
    schedules = await api.host.call(lambda runtime: runtime.commands.schedules(Schedules(ns=ns, limit=51)))
    runs = await api.host.call(lambda runtime: runtime.commands.runs(Runs(ns=ns, limit=20)))
    names = {one.id: one.name for one in schedules}
    health = api.ms.health().status
    rows = [_schedule_row(schedule_view(one, None)) for one in schedules[:50]]
    latest = [_execution_row(execution_view(run), names) for run in runs]
    more = '<p>More at <a href="/api/schedules">/api/schedules</a>.</p>' if len(schedules) > 50 else ""
    none = (
        '<p class="dim">None yet. Create one with <code>POST /api/schedules</code>; '
        'the <a href="/api/docs">documentation</a> has examples.</p>'
    )
    return _page(
        "Mainspring",
        f"<h1>Mainspring</h1>{_insecure(api.settings)}"
        f"<p>This instance is {_colored(health, 'good' if health == 'ok' else 'warn')}. "
        '<a href="/api/docs">API</a> · <a href="/api/health">Health</a></p>'
        f"<h2>Schedules</h2>{_rows(rows) or none}{more}"
        f"<h2>Latest executions</h2>{_rows(latest) or '<p class=dim>None yet.</p>'}",
    )


def _insecure(settings: ServeSettings | None) -> str:
    """Return an HTML warning if the service needs no API key by `insecure_no_auth`; else ""."""
    if settings is None or not settings.server.insecure_no_auth:
        return ""
    return "<p role=alert class=bad>Any caller that reaches this address can do anything: it runs without keys.</p>"


def _schedule_row(view: ScheduleView) -> str:
    """Return the HTML content of a list item for a schedule: name, trigger, task or URL, state, next fire or reason."""
    where = view.agent_url or view.task
    then = f"next {view.next_run}" if view.next_run else view.pause_reason or view.finish_reason or ""
    return (
        f'<strong><a href="/api/schedules/{escape(view.id)}">{escape(view.name)}</a></strong>'
        f"<span>{escape(view.description)}</span><span class=dim>{escape(str(where))}</span>"
        f"<span>{_colored(view.state)}</span><span class=dim>{escape(then)}</span>"
    )


def _execution_row(view: ExecutionView, names: dict[str, str]) -> str:
    """Return the HTML content of a list item for an execution: name, status, time, error or reason.

    The name is the schedule's name in `names` (schedule id → name); the task's name if `names` has no such schedule.
    """
    name = names.get(view.schedule_id or "", view.task)
    return (
        f'<strong><a href="/api/executions/{escape(view.id)}">{escape(name)}</a></strong>'
        f"<span>{_colored(view.status)}</span><span class=dim>{escape(view.fire_time or view.created_at)}</span>"
        f"<span class=dim>{escape((view.error or view.reason or '')[:200])}</span>"
    )


def _colored(text: str, kind: str = "") -> str:
    """Return `text` as HTML with the CSS class `kind`, for its color; "": the class for the status or state `text`."""
    return f'<span class="{kind or _STATE_CLASSES.get(text, "dim")}">{escape(text)}</span>'


def _rows(items: Sequence[str]) -> str:
    return f"<ul class=rows>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


async def api_docs(request: Request) -> Response:
    """Answer with an HTML page that documents the API; it is made from the OpenAPI document."""
    parse_query(request, NoQuery)
    found = document()
    parts = [
        "<h1>Mainspring API</h1>",
        (
            f"<p>{escape(found['info']['description'])} For programs: "
            '<a href="/api/openapi.json">/api/openapi.json</a>.</p>'
        ),
        (
            "<p>Errors are RFC 9457 problem documents: <code>errors</code> names each wrong field. "
            "Lists are arrays; the <code>Link</code> header leads to the next page.</p>"
        ),
    ]
    for path, methods in found["paths"].items():
        parts += [_operation(method.upper(), path, operation) for method, operation in methods.items()]
    parts.append("<h2>Structures</h2>")
    for name, schema in found["components"]["schemas"].items():
        parts.append(f'<section id="{escape(name)}"><h3>{escape(name)}</h3>{_schema(schema)}</section>')
    return _page("Mainspring API", "".join(parts))


async def openapi_json(request: Request) -> Response:
    """Answer with the OpenAPI document."""
    parse_query(request, NoQuery)
    return json_response(document())


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    """Return the HTML section about one route; `operation` is the description of the route in the OpenAPI document."""
    parts = [f"<section><h3><code>{method} {escape(path)}</code></h3><p>{escape(operation['summary'])}.</p>"]
    named = [one for one in operation["parameters"] if one["in"] != "path"]
    if named:
        items = "".join(f"<dt>{escape(one['name'])}</dt>{_meaning(one['schema'], one)}" for one in named)
        parts.append(f"<dl>{items}</dl>")
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if content:
        parts.append(f"<p>Body: {_type_words(content['schema'])}</p>")
        for example in list(content["examples"].values())[:1]:
            text = msgspec.json.format(msgspec.json.encode(example["value"]), indent=2).decode()
            parts.append(f"<pre>{escape(text)}</pre>")
    answers = "<br>".join(
        f"{escape(status)} {escape(answer['description'])}" for status, answer in operation["responses"].items()
    )
    parts.append(f"<p class=dim>{answers}</p></section>")
    return "".join(parts)


def _schema(schema: dict[str, Any]) -> str:
    """Return the description and the fields of a JSON schema of the OpenAPI document, as HTML."""
    required = schema.get("required", [])
    items = "".join(
        f"<dt>{escape(name)}{' (required)' if name in required else ''}</dt>{_meaning(one, one)}"
        for name, one in schema.get("properties", {}).items()
    )
    return f"<p>{escape(schema.get('description', ''))}</p><dl>{items}</dl>"


def _meaning(schema: dict[str, Any], described: dict[str, Any]) -> str:
    """Return the type of a field or parameter and its description, as HTML."""
    return f"<dd>{_type_words(schema)}<br>{escape(described.get('description', ''))}</dd>"


def _type_words(schema: dict[str, Any]) -> str:
    """Return the type of a JSON schema in HTML, such as "array of string". A reference to a schema becomes a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_type_words(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type_words(schema.get('items', {}))}"
    words = [schema.get("type", "anything"), *_bounds(schema)]
    return escape(" ".join(str(word) for word in words))


def _bounds(schema: dict[str, Any]) -> Iterable[str]:
    """Yield the minimum, maximum, maximal length and default value of a JSON schema in words, such as "≥ 1"."""
    if "minimum" in schema:
        yield f"≥ {schema['minimum']}"
    if "maximum" in schema:
        yield f"≤ {schema['maximum']}"
    if "maxLength" in schema:
        yield f"of at most {schema['maxLength']} characters"
    if "default" in schema:
        yield f"(default {schema['default']})"


def _page(title: str, body: str) -> Response:
    """Return an HTML page with `body`, and with headers that forbid the browser to run scripts or load anything."""
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )
    return Response(html, headers=_HEADERS, media_type="text/html")
