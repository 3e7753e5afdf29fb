"""Reload the configuration while the service runs: a changed file takes effect, or is refused as a whole.

The directory of a file is watched, not the file: editors replace files, and Kubernetes swaps a symlink called `..data`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mainspring.config.redaction import format_value
from mainspring.config.resolve import Resolved, Sources, resolve, select_live
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import MainspringError

log = logging.getLogger("mainspring.config")

#: Interval at which files are compared where the system does not report changes.
FILE_POLL_SECONDS = 1.0
#: Longest time in which changes of files are collected before the files are compared.
_DEBOUNCE_MS = 50


class Reloader:
    """Holds the settings in force, and replaces them when the configuration file or `.env` changes.

    Both files are watched; without a configuration file at the last reload, only `.env` is. `resolved` are the settings
    at the start, and `sources` is read again at each reload.
    """

    def __init__(self, sources: Sources, resolved: Resolved) -> None:
        self._sources = sources
        self._resolved = resolved
        #: The state of the files at the last reload; see `_fingerprint`.
        self._seen = self._fingerprint()
        #: The settings in force: live keys as of the last reload, all others as of the start.
        self.settings: ServeSettings = resolved.settings
        #: Called in this order with the new settings, when a reload has changed a live key.
        self.listeners: list[Callable[[ServeSettings], object]] = []
        #: Number of reloads that were not refused.
        self.reloads = 0
        #: Why the last reload was refused, or None.
        self.refused: str | None = None

    def reload(self) -> bool:
        """Read all sources again, adopt the live keys and return True; if a value is wrong, keep all and return False.

        If a live key has changed, `settings` is replaced and the listeners are called. What changed, or what is wrong,
        is logged; `refused` gets the error's text, or None.
        """
        self._seen = self._fingerprint()
        try:
            resolved = resolve(self._sources)
        except MainspringError as error:
            self.refused = str(error)
            log.error("configuration not changed: %s", error)
            return False
        before, self.refused = self.settings, None
        settings, live, later = select_live(before, resolved.settings)
        self._resolved = resolved
        if live:
            self.settings = settings
            for listener in self.listeners:
                listener(settings)
        self.reloads += 1
        self._log_changes(before, resolved.settings, live, later)
        return True

    def _log_changes(self, before: ServeSettings, new: ServeSettings, live: list[str], later: list[str]) -> None:
        """Log old and new values of the changed keys in `live`, and the changed keys `later`, which need a restart."""
        from mainspring.config.schema import get_value

        for key in live:
            log.info(
                "%s: %s → %s", key, format_value(key, get_value(before, key)), format_value(key, get_value(new, key))
            )
        if later:
            log.warning("%s: changed in the file, in force at the next start", ", ".join(later))
        if not live and not later:
            log.info("configuration read again: nothing changed")

    # ── watching ───────────────────────────────────────────────────────────

    async def watch(self, stop: asyncio.Event) -> None:
        """Reload whenever a file changes, until `stop` is set.

        Where changes are not reported (`watchfiles` is not installed, or the directory cannot be watched), the files
        are compared every `FILE_POLL_SECONDS`.
        """
        folders = self._folders()
        try:
            import watchfiles
        except ModuleNotFoundError:
            await self._poll(stop)
            return
        try:
            # No event of the directories is filtered out: `look` itself compares the files.
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
        """Look every `FILE_POLL_SECONDS`, and once more when `stop` is set; then return."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILE_POLL_SECONDS):
                    await stop.wait()
            self.look()

    def look(self) -> None:
        """Reload if a file differs from its state at the last reload."""
        if self._fingerprint() != self._seen:
            self.reload()

    def _folders(self) -> list[Path]:
        return sorted({path.parent.absolute() for path in self._files()})

    def _files(self) -> Iterator[Path]:
        if self._resolved.file is not None:
            yield self._resolved.file
        yield self._sources.folder / ".env"

    def _fingerprint(self) -> tuple[object, ...]:
        """Return the state of each file, to be compared with a later one; a swapped symlink leads to another inode."""
        return tuple(_file_state(path) for path in self._files())


def _file_state(path: Path) -> object:
    """Return inode, time of change and size of a file; the number of the error if they cannot be read."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_mtime_ns, found.st_size
