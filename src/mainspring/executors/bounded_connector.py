"""Connector of aiohttp whose connections end after too many informational responses (1xx) to one request."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

#: The most informational responses to one request. Why: aiohttp skips any number of them without letting its event loop
#: do anything else, so an agent that sends nothing else would stop the service.
MAX_INFORMATIONAL = 20


class BoundedConnector(aiohttp.TCPConnector):
    """Opens connections that raise `aiohttp.ClientPayloadError` after `MAX_INFORMATIONAL` informational responses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_BoundedHandler, loop=self._loop))


class _BoundedHandler(ResponseHandler):
    """Protocol of one connection. `read` returns its responses one after the other, also the informational ones."""

    _informational = 0

    async def read(self) -> Any:
        """Return the next response as (head, body). Raises: aiohttp.ClientPayloadError, see `BoundedConnector`."""
        response = await super().read()
        if not 100 <= response[0].code < 200:
            self._informational = 0
            return response
        self._informational += 1
        if self._informational > MAX_INFORMATIONAL:
            self.close()
            raise aiohttp.ClientPayloadError(f"it sent more than {MAX_INFORMATIONAL} informational responses (1xx)")
        return response
