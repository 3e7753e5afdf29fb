"""Hot reload: a changed file is read, checked and compared; then the live settings are swapped, or the old ones stay.

The directory is watched, not the file: editors replace files, and Kubernetes swaps a symlink called `..data`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mainspring.config.resolve import Resolved, Sources, adopted, resolve
from mainspring.config.settings import ServeSettings
from mainspring.config.shown import shown
from mainspring.model.errors import MainspringError

log = logging.getLogger("mainspring.config")

#: Without notices of the system: look so often, in seconds.
LOOK_EVERY = 1.0
_DEBOUNCE_MS = 50


class Reloader:
    """Holds the settings in force and changes them when the file does."""

    def __init__(self, sources: Sources, resolved: Resolved) -> None:
        self._sources = sources
        self._resolved = resolved
        self._seen = self._fingerprint()
        self.settings: ServeSettings = resolved.settings
        #: Called with the new settings, in order.
        self.listeners: list[Callable[[ServeSettings], object]] = []
        self.reloads = 0
        #: Why the last attempt was refused, or None.
        self.refused: str | None = None

    def reload(self) -> bool:
        """Parse, validate, compare, swap; false when the old settings stay in force."""
        self._seen = self._fingerprint()
        try:
            resolved = resolve(self._sources)
        except MainspringError as error:
            self.refused = str(error)
            log.error("configuration not changed: %s", error)
            return False
        before, self.refused = self.settings, None
        settings, live, later = adopted(before, resolved.settings)
        self._resolved = resolved
        if live:
            self.settings = settings
            for listener in self.listeners:
                listener(settings)
        self.reloads += 1
        self._say(before, resolved.settings, live, later)
        return True

    def _say(self, before: ServeSettings, new: ServeSettings, live: list[str], later: list[str]) -> None:
        from mainspring.config.keys import value_of

        for key in live:
            log.info("%s: %s → %s", key, shown(key, value_of(before, key)), shown(key, value_of(new, key)))
        if later:
            log.warning("%s: changed in the file, in force at the next start", ", ".join(later))
        if not live and not later:
            log.info("configuration read again: nothing changed")

    # ── watching ───────────────────────────────────────────────────────────

    async def watch(self, stop: asyncio.Event) -> None:
        """Reload whenever the files change, until `stop`."""
        folders = self._folders()
        try:
            import watchfiles
        except ModuleNotFoundError:
            await self._poll(stop)
            return
        try:
            # Bound to be quick and quiet: the filter is ours, by what the files say.
            async for _ in watchfiles.awatch(
                *folders,
                watch_filter=None,
                recursive=False,
                debounce=_DEBOUNCE_MS,
                step=20,
                stop_event=stop,
                rust_timeout=1_000,
                yield_on_timeout=True,
            ):
                self.look()
        except (OSError, FileNotFoundError) as error:
            log.warning("%s cannot be watched (%s); looking every second", folders[0], error)
            await self._poll(stop)

    async def _poll(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await stop.wait()
            self.look()

    def look(self) -> None:
        """Reload if a file is another than at the last look."""
        if self._fingerprint() != self._seen:
            self.reload()

    def _folders(self) -> list[Path]:
        return sorted({path.parent.absolute() for path in self._files()})

    def _files(self) -> Iterator[Path]:
        if self._resolved.file is not None:
            yield self._resolved.file
        yield self._sources.folder / ".env"

    def _fingerprint(self) -> tuple[object, ...]:
        """Which file is there, and which content: a symlink that was swapped leads to another one."""
        return tuple(_mark(path) for path in self._files())


def _mark(path: Path) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_mtime_ns, found.st_size
