"""The routes for whoever runs the service: `/health` and `/ready`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.api.components import Components, Report

_HEADERS = {"Cache-Control": "no-store"}


def ops_routes(components: Components) -> list[Route]:
    """They stand before the API's own, and are all that a planner or worker serves."""

    async def health(request: Request) -> Response:
        """How it is: 200, or 503 when the store does not answer."""
        report = await components.report()
        return _answer(request, report, 503 if report.status == "unhealthy" else 200)

    async def ready(request: Request) -> Response:
        """Whether it should be given work: 200 or 503."""
        report = await components.report()
        return _answer(request, report, 200 if report.ready else 503)

    return [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
    ]


def _answer(request: Request, report: Report, status: int) -> Response:
    """Strangers hear one word."""
    word = report.status if request.url.path != "/ready" else _readiness(report)
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


def _readiness(report: Report) -> str:
    if not report.ready:
        return "not ready"
    return "ready" if report.status == "healthy" else "degraded"
