"""Access log: one line for each HTTP request.

A line has the client's address (also behind a trusted proxy), caller, method, path, status, size of the answer,
duration and request id. Queries, headers and bodies are never logged: they may hold secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("mainspring.access")


class AccessLog:
    """ASGI middleware that logs every request while `enabled`. It is the outermost, so it also logs refused requests.

    The service sets `enabled` again when the configuration is reloaded. `monotonic` returns seconds.
    """

    def __init__(self, app: ASGIApp, monotonic: Callable[[], float], *, enabled: bool = True) -> None:
        self._app = app
        self._monotonic = monotonic
        self.enabled = enabled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.enabled:
            await self._app(scope, receive, send)
            return
        began = self._monotonic()
        status, size = 0, 0  # status 0 is logged if the app sent no answer

        async def send_counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            state = scope.get("state", {})
            # The path is logged as the client sent it, percent-encoded: so no path can forge a line of the log.
            path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:500]
            fields = {
                "client": state.get("address") or "-",
                "caller": (state.get("caller") or "-").replace(" ", "_"),
                "method": scope["method"],
                "path": path,
                "status": status,
                "bytes": size,
                "duration_ms": round((self._monotonic() - began) * 1000, 1),
                "request_id": state.get("request_id", "-"),
            }
            log.info("%s %s %s %s %d %dB %.1fms %s", *fields.values(), extra=fields)
