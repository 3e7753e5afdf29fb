"""The routes for whoever runs the service: a status page, `/health` and `/ready`."""

from __future__ import annotations

from html import escape

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.api.components import Components, Report
from mainspring.config.settings import ServeSettings

_HEADERS = {"Cache-Control": "no-store"}
_PAGE_HEADERS = _HEADERS | {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def ops_routes(components: Components) -> list[Route]:
    """They stand before the API's own."""

    async def health(request: Request) -> Response:
        """How it is: 200, or 503 when the store does not answer."""
        report = await components.report()
        return _answer(request, report, 503 if report.status == "unhealthy" else 200)

    async def ready(request: Request) -> Response:
        """Whether it should be given work: 200 or 503."""
        report = await components.report()
        return _answer(request, report, 200 if report.ready else 503)

    async def page(request: Request) -> Response:
        """A plain page for people."""
        report = await components.report()
        return Response(_page(report, components.settings), 200, _PAGE_HEADERS, "text/html")

    return [
        Route("/", page, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
    ]


def _answer(request: Request, report: Report, status: int) -> Response:
    """Strangers hear one word."""
    word = report.status if request.url.path != "/ready" else ("ready" if report.ready else "not ready")
    shown: dict[str, object] = {"status": word}
    if request.scope["state"].get("caller"):
        shown |= {
            "ready": report.ready,
            "role": report.role,
            "version": report.version,
            "components": report.components,
            "last_updated": report.last_updated,
        }
    return Response(msgspec.json.encode(shown), status, _HEADERS, "application/json")


def _page(report: Report, settings: ServeSettings) -> str:
    rows = "\n".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(part.status)}</td><td>{escape(part.detail)}</td></tr>"
        for name, part in report.components.items()
    )
    insecure = ""
    if settings.server.insecure_no_auth and not settings.server.on_loopback:
        insecure = (
            "<p role=alert><strong>Anybody who reaches this address can do anything: it runs without keys.</strong></p>"
        )
    return f"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width"><title>Mainspring</title>
<h1>Mainspring</h1>
{insecure}<p>Version {escape(report.version)}, role {escape(report.role)}: <strong>{escape(report.status)}</strong></p>
<table><caption>Components at {escape(report.last_updated)}</caption>
{rows}
</table>
<p><a href="/api/docs">API</a> · <a href="/api/schedules">Schedules</a> · <a href="/api/executions">Executions</a></p>
</html>
"""
