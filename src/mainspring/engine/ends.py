"""Who waits here for the end of a run."""

from __future__ import annotations

import asyncio


class Ends:
    """Lives on the engine's loop."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[asyncio.Future[None]]] = {}

    def ended(self, run_id: str) -> None:
        """Tell those who wait for this one."""
        if self.waiting:
            for future in self.waiting.pop(run_id, ()):
                if not future.done():
                    future.set_result(None)

    async def wait(self, run_id: str, timeout: float) -> None:
        """Return when the run ended here, or after `timeout` seconds; somebody else may have ended it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(run_id, []).append(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return
        finally:
            waiting = self.waiting.get(run_id)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self.waiting[run_id]
