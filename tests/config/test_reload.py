"""Hot reload: what changes at once, what waits, what is refused; files, symlinks, signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.config.reload import Reloader
from mainspring.config.resolve import Sources, resolve
from mainspring.config.settings import ServeSettings

PATIENCE = 30.0


def reloader_on(folder: Path, path: Path | None = None) -> Reloader:
    sources = Sources(folder=folder, config=path)
    return Reloader(sources, resolve(sources))


@contextlib.asynccontextmanager
async def watching(reloader: Reloader) -> AsyncIterator[asyncio.Queue[ServeSettings]]:
    """The settings that come in force, in order."""
    seen: asyncio.Queue[ServeSettings] = asyncio.Queue()
    reloader.listeners.append(seen.put_nowait)
    stop = asyncio.Event()
    watch = asyncio.create_task(reloader.watch(stop))
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.wait_for(watch, PATIENCE)


async def following(seen: asyncio.Queue[ServeSettings], per_host: int) -> ServeSettings:
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                settings = await seen.get()
                if settings.agents.per_host == per_host:
                    return settings
    except TimeoutError:
        pytest.fail(f"agents.per_host never became {per_host}")


def test_a_reload_swaps_what_is_live_and_says_what_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 3}\nserver: {port: 3001}\n")
    reloader = reloader_on(tmp_path)
    told: list[int] = []
    reloader.listeners.append(lambda settings: told.append(settings.agents.per_host))
    path.write_text("agents: {per_host: 4}\nserver: {port: 3002}\n")
    assert reloader.reload()
    assert (reloader.settings.agents.per_host, reloader.settings.server.port) == (4, 3001)
    assert told == [4]
    assert "agents.per_host: 3 → 4" in caplog.text
    assert "server.port: takes effect after a restart" in caplog.text


@pytest.mark.parametrize(
    "bad", ["agents: {per_hots: 5}\n", "agents: [\n", "agents: {per_host: 0}\n", b"\xff\xfe", "a: \x01\n"]
)
def test_a_bad_file_keeps_the_old_settings_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str | bytes
) -> None:
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 3}\n")
    reloader = reloader_on(tmp_path)
    reloader.listeners.append(lambda settings: pytest.fail("nothing changed"))
    path.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    assert not reloader.reload()
    assert reloader.settings.agents.per_host == 3
    assert f"configuration refused, the old one stays: {path}: " in caplog.text
    assert reloader.refused is not None
    reloader.listeners.clear()
    path.write_text("agents: {per_host: 6}\n")
    assert reloader.reload()
    assert (reloader.settings.agents.per_host, reloader.refused) == (6, None)


def test_an_unforeseen_error_in_reading_is_logged_and_the_next_file_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 3}\n")
    reloader = reloader_on(tmp_path)
    path.write_text("agents: {per_host: 4}\n")
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.config.reload.resolve", lambda sources: 1 // 0)
        assert not reloader.reload()
    assert "configuration cannot be read, the old one stays" in caplog.text
    assert (reloader.refused or "").startswith("ZeroDivisionError: ")
    assert reloader.reload()
    assert reloader.settings.agents.per_host == 4


def test_a_listener_that_fails_keeps_no_other_from_the_new_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 3}\n")
    reloader = reloader_on(tmp_path)
    told: list[int] = []
    reloader.listeners += [lambda settings: 1 // 0, lambda settings: told.append(settings.agents.per_host)]
    path.write_text("agents: {per_host: 4}\n")
    assert reloader.reload()
    assert told == [4]
    assert "a part of the service cannot use the new settings" in caplog.text


def test_a_removed_file_keeps_the_old_settings(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("agents: {per_host: 3}\n")
    reloader = reloader_on(tmp_path, path)
    path.unlink()
    assert not reloader.reload()
    assert reloader.settings.agents.per_host == 3


async def test_a_change_of_the_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[agents]\nper_host = 1\n")
    async with watching(reloader_on(tmp_path)) as seen:
        path.write_text("[agents]\nper_host = 2\n")
        await following(seen, 2)
        fresh = tmp_path / "fresh"  # as editors do
        fresh.write_text("[agents]\nper_host = 3\n")
        fresh.replace(path)
        await following(seen, 3)
        (tmp_path / ".env").write_text("MAINSPRING_AGENTS__PER_HOST=4\n")
        await following(seen, 4)
        (tmp_path / ".env").unlink()
        await following(seen, 3)


async def test_a_symlink_that_is_swapped_as_kubernetes_does_is_seen(tmp_path: Path) -> None:
    """A ConfigMap: the file leads to `..data/…`, `..data` to a directory, and only `..data` is swapped."""
    mount = tmp_path / "etc"
    mount.mkdir()

    def version(number: int) -> None:
        folder = mount / f"..2026_{number}"
        folder.mkdir()
        (folder / "mainspring.yaml").write_text(f"agents: {{per_host: {number}}}\n")
        fresh = mount / "..data_tmp"
        fresh.symlink_to(folder.name)
        os.rename(fresh, mount / "..data")

    version(1)
    path = mount / "mainspring.yaml"
    path.symlink_to("..data/mainspring.yaml")
    work = tmp_path / "work"
    work.mkdir()
    reloader = reloader_on(work, path)
    assert reloader.settings.agents.per_host == 1
    async with watching(reloader) as seen:
        for number in (2, 3, 4):
            version(number)
            await following(seen, number)


async def test_without_watchfiles_the_file_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    monkeypatch.setattr("mainspring.config.reload.FILE_POLL_SECONDS", 0.01)
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 1}\n")
    async with watching(reloader_on(tmp_path)) as seen:
        path.write_text("agents: {per_host: 2}\n")
        await following(seen, 2)


async def test_a_reload_that_changes_nothing_calls_no_listener(tmp_path: Path) -> None:
    (tmp_path / "mainspring.yaml").write_text("agents: {per_host: 1}\n")
    reloader = reloader_on(tmp_path)
    reloader.listeners.append(lambda settings: pytest.fail("nothing changed"))
    assert reloader.reload()
    reloader.reload_if_changed()
    assert reloader.reloads == 1
