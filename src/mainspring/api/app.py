"""The REST API as an ASGI app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainspring.api import callbacks
from mainspring.api.base import Api
from mainspring.api.pages import api_docs, openapi_json, status_page
from mainspring.api.problems import on_error
from mainspring.api.routes import ENDPOINTS, Endpoint, Handler
from mainspring.model.errors import MainspringError

if TYPE_CHECKING:
    from mainspring.app import Mainspring


CALLBACKS = "/api/callbacks/"


def build(ms: Mainspring, settings: Any = None) -> Starlette:
    """The service of an app whose engine somebody else starts and stops.

    Before a server is stopped, `app.state.api.closing.set()` ends the event streams.
    """
    app = Starlette(routes=[*_routes(), *callbacks.routes(ms)])
    app.router.redirect_slashes = False  # a redirect would repeat whatever host the caller named
    app.state.api = Api(ms, settings)
    for kind in (Exception, HTTPException, MainspringError):
        app.add_exception_handler(kind, on_error)
    return app


#: Pages and documents; they are made of the table, so they cannot be in it.
PAGES: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="/", handler=status_page, summary="How the service is", documented=False),
    Endpoint(method="GET", path="/api/docs", handler=api_docs, summary="The API for people", documented=False),
    Endpoint(
        method="GET", path="/api/openapi.json", handler=openapi_json, summary="The API for programs", documented=False
    ),
)


def route_table(app: Starlette) -> list[tuple[str, str, bool]]:
    """Method, path and whether it is public, of every route of the app; callbacks bring a key of their own."""
    known = {(one.method, one.path): one.public for one in (*ENDPOINTS, *PAGES)}
    return [
        (method, route.path, known.get((method, route.path), route.path.startswith(CALLBACKS)))
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _routes() -> list[BaseRoute]:
    """One Starlette route for each path, so that a wrong method is told which ones there are."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in (*ENDPOINTS, *PAGES):
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return [
        Route(path, _by_method({one.method: one.handler for one in ends}), methods=[one.method for one in ends])
        for path, ends in by_path.items()
    ]


def _by_method(handlers: dict[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(request)
        except Exception as error:
            return await on_error(request, error)

    return handle
