"""Reload the configuration while the service runs. A file with a wrong value is refused as a whole.

Of a file without a mistake, the values of live keys (`Key.live`) take effect at once, the others at the next start. The
directory of a file is watched, not the file: editors replace files, and Kubernetes swaps a symlink called `..data`.
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

#: Interval at which the files are checked where the system does not report changes.
FILE_POLL_SECONDS = 1.0
#: For at most this long, reported changes are collected before the files are checked.
_DEBOUNCE_MS = 50


class Reloader:
    """Holds the settings in force, and replaces those of live keys when the configuration file or `.env` changes.

    A live key (`Key.live`) is one whose value may change while the service runs. `resolved` are the settings at the
    start. `sources` is read again at each reload. Without a configuration file, only `.env` is watched.
    """

    def __init__(self, sources: Sources, resolved: Resolved) -> None:
        self._sources = sources
        self._resolved = resolved
        #: The state of the files at the last reload.
        self._seen = self._fingerprint()
        #: The settings in force: live keys as of the last reload, all others as of the start.
        self.settings: ServeSettings = resolved.settings
        #: Functions that are called, in this order, with the new settings when a reload has changed a live key.
        self.listeners: list[Callable[[ServeSettings], object]] = []
        #: Number of reloads that were not refused.
        self.reloads = 0
        #: Why the last reload was refused, or None.
        self.refused: str | None = None

    def reload(self) -> bool:
        """Read all sources again, adopt the values of the keys that may change at run time (`Key.live`), return True.

        Other changed keys take effect at the next start. If a live key changed, replace `settings` and call the
        listeners. If a source cannot be read or a value is wrong, change no setting and return False. Every change, or
        the error, is logged. `refused` is set to the error's text, or to None.
        """
        self._seen = self._fingerprint()
        try:
            resolved = resolve(self._sources)
        except MainspringError as error:
            self.refused = str(error)
            log.error("configuration refused, the old one stays: %s", error)
            return False
        except Exception as error:  # a defect in reading must not end the watching of the files
            self.refused = f"{type(error).__name__}: {error}"
            log.exception("configuration cannot be read, the old one stays")
            return False
        before, self.refused = self.settings, None
        settings, live, later = select_live(before, resolved.settings)
        self._resolved = resolved
        if live:
            self.settings = settings
            for listener in self.listeners:
                try:
                    listener(settings)
                except Exception:  # the other listeners still need the new settings
                    log.exception("a part of the service cannot use the new settings")
        self.reloads += 1
        self._log_changes(before, resolved.settings, live, later)
        return True

    def _log_changes(self, before: ServeSettings, new: ServeSettings, live: list[str], later: list[str]) -> None:
        """Log the changes of a reload: old and new value of each key in `live`, and the names of the keys in `later`.

        `live` are changed keys that take effect now, `later` changed keys that need a restart. If both are empty, log
        that nothing changed.
        """
        from mainspring.config.schema import get_value

        for key in live:
            log.info(
                "%s: %s → %s", key, format_value(key, get_value(before, key)), format_value(key, get_value(new, key))
            )
        if later:
            log.warning("%s: takes effect after a restart", ", ".join(later))
        if not live and not later:
            log.info("configuration read again: nothing changed")

    # ── watching ───────────────────────────────────────────────────────────

    async def watch(self, stop: asyncio.Event) -> None:
        """Reload whenever the configuration file or `.env` changes, until `stop` is set.

        Where changes are not reported (`watchfiles` is not installed, or the directory cannot be watched), the files
        are checked every `FILE_POLL_SECONDS`.
        """
        folders = self._folders()
        try:
            import watchfiles
        except ModuleNotFoundError:
            await self._poll(stop)
            return
        try:
            # Every change in the directories counts: `reload_if_changed` itself checks the files.
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
                self.reload_if_changed()
        except (OSError, FileNotFoundError) as error:
            log.warning("%s cannot be watched (%s); checking the files every second instead", folders[0], error)
            await self._poll(stop)

    async def _poll(self, stop: asyncio.Event) -> None:
        """Call `reload_if_changed` every `FILE_POLL_SECONDS`, and once more when `stop` is set.

        Used where changes of files are not reported.
        """
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILE_POLL_SECONDS):
                    await stop.wait()
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Reload if a watched file has changed since the last reload."""
        if self._fingerprint() != self._seen:
            self.reload()

    def _folders(self) -> list[Path]:
        return sorted({path.parent.absolute() for path in self._files()})

    def _files(self) -> Iterator[Path]:
        if self._resolved.file is not None:
            yield self._resolved.file
        yield self._sources.folder / ".env"

    def _fingerprint(self) -> tuple[object, ...]:
        """Return the state of each watched file: two results differ if a file was changed, or a symlink swapped."""
        return tuple(_file_state(path) for path in self._files())


def _file_state(path: Path) -> object:
    """Return (inode, time of modification, size) of a file; or the number of the error if they cannot be read."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_mtime_ns, found.st_size
