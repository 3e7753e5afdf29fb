"""The REST API as an ASGI app, made from the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainspring.api.context import Api
from mainspring.api.problems import on_error
from mainspring.api.route_table import ENDPOINTS, PROBES, Endpoint, Handler
from mainspring.api.routes.pages import api_docs, openapi_json, status_page
from mainspring.api.trailing_slash import TrailingSlash
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import MainspringError

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring


def build(ms: Mainspring, settings: ServeSettings | None = None) -> Starlette:
    """Return the ASGI app that serves `ms`. The caller starts and stops the engine of `ms`.

    `settings.role` decides the routes: a planner or a worker has only the probes `/health` and `/ready`. `settings`
    None: the app is embedded in another program and has all routes. Before the server stops, the caller must set
    `app.state.api.closing`, which ends the open event streams.
    """
    has_api = settings is None or settings.role in ("all", "api")
    app = Starlette(routes=_routes((*ENDPOINTS, *PAGES) if has_api else PROBES))
    app.router.redirect_slashes = False
    app.add_middleware(TrailingSlash)
    app.state.api = Api(ms, settings)
    for kind in (Exception, HTTPException, MainspringError):
        app.add_exception_handler(kind, on_error)
    return app


#: Routes of the HTML pages and the OpenAPI document. They are made from the table of routes, so they cannot be in it.
PAGES: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="/", handler=status_page, summary="Status page", documented=False),
    Endpoint(method="GET", path="/api/docs", handler=api_docs, summary="Documentation of the API", documented=False),
    Endpoint(
        method="GET", path="/api/openapi.json", handler=openapi_json, summary="OpenAPI document", documented=False
    ),
)


def route_table(app: Starlette) -> list[tuple[str, str, bool]]:
    """Return (method, path, open) for every route of an app. `open` is True if the route needs no API key.

    A route that is in neither `ENDPOINTS` nor `PAGES` counts as one that needs a key. Used by tests of access rights.
    """
    open_routes = {(one.method, one.path) for one in (*ENDPOINTS, *PAGES) if one.public or one.callback}
    return [
        (method, route.path, (method, route.path) in open_routes)
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _routes(endpoints: Iterable[Endpoint]) -> list[BaseRoute]:
    """Return one Starlette route for each path, which handles all methods of the path.

    Why: with a route for each method, the answer to a wrong method would list the methods of one route only.
    """
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return [
        Route(path, _by_method({one.method: one.handler for one in ends}), methods=[one.method for one in ends])
        for path, ends in by_path.items()
    ]


def _by_method(handlers: dict[str, Handler]) -> Handler:
    """Return a handler for one path, which calls the handler of the request's method. `handlers`: method → handler.

    HEAD is handled like GET. If the handler raises an exception, the answer is a problem document.
    """

    async def handle(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(request)
        except Exception as error:
            return await on_error(request, error)

    return handle
