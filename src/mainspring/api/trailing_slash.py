"""Serve paths with a slash at the end like the paths without it: `/api/schedules/` is `/api/schedules`."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class TrailingSlash:
    """ASGI middleware that removes slashes at the end of a path before the app sees it.

    Why not a redirect: it would repeat whatever host the caller named. An encoded slash (`%2F`) belongs to a name and
    stays: without it, the path would name another schedule.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and len(raw) > 1 and raw.endswith(b"/"):
            kept = raw.rstrip(b"/") or b"/"
            left = len(raw) - len(kept)
            scope = {**scope, "path": scope["path"][:-left] or "/", "raw_path": kept}
        await self._app(scope, receive, send)
