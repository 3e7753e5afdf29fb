"""Health over HTTP: liveness (`/health`), readiness (`/ready`) and dependencies (`/api/health`)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.context import api_of, json_response
from mainspring.api.health_reporter import Readiness
from mainspring.api.schemas import HealthView


async def liveness(request: Request) -> Response:
    """Answer 200 if the engine's thread answers, else 503. The store is not asked."""
    report = await api_of(request).health.liveness()
    return json_response(report, 200 if report.status == "healthy" else 503)


async def readiness(request: Request) -> Response:
    """Answer 200 if the instance should receive work, else 503, with its status in a word.

    A caller with an API key, or on loopback, also gets the role, the version, and the status of each part.
    """
    report = await api_of(request).health.readiness()
    shown: dict[str, object] = {"status": _readiness_word(report)}
    if _is_known(request):
        shown |= {
            "ready": report.ready,
            "role": report.role,
            "version": report.version,
            "components": report.components,
            "last_updated": report.last_updated,
        }
    return json_response(shown, 200 if report.ready else 503)


async def api_health(request: Request) -> Response:
    """Answer 200 if the store answers, else 503.

    A caller with an API key, or on loopback, also gets `components`: `database`, and `broker` and `redis` where used.
    """
    report = await api_of(request).health.dependencies()
    view = HealthView(status=report.status)
    if _is_known(request):
        view.components, view.last_updated = report.components, report.last_updated
    return json_response(view, 503 if report.status == "unhealthy" else 200)


def _readiness_word(report: Readiness) -> str:
    """Return the status that `/ready` shows: "not ready", "ready", or "degraded" (ready, but a part is not healthy)."""
    if not report.ready:
        return "not ready"
    return "ready" if report.status == "healthy" else "degraded"


def _is_known(request: Request) -> bool:
    """Return True if the caller may see details: it sent a valid API key, or needs none, as on loopback.

    In an app without access control, such as an embedded one, return True for every caller.
    """
    caller: str | None = request.scope.get("state", {}).get("caller")
    return caller != ""
