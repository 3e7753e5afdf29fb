"""The REST API as an ASGI app."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from mainspring.app import Mainspring


class Api:
    """The service behind the routes."""

    def __init__(self, ms: Mainspring, settings: Any = None) -> None:
        self.ms = ms
        self.settings = settings
        self.closing = asyncio.Event()


def build(ms: Mainspring, settings: Any = None) -> Starlette:
    """The service of an app whose engine somebody else starts and stops."""

    async def api_health(request: Request) -> Response:
        return Response(msgspec.json.encode({"status": "healthy"}), media_type="application/json")

    app = Starlette(routes=[Route("/api/health", api_health, methods=["GET"])])
    app.state.api = Api(ms, settings)
    return app
