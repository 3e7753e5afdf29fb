"""Permissions: other users of the machine can neither read nor write the file of a store, which holds secrets."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Http, Mainspring, StoreError
from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite.file_modes import create_private_file
from mainspring.model.errors import StoreDenied
from mainspring.ports.clock import SystemClock
from mainspring.runtime.store_url import open_store

NOBODY = 65534


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Run the test under a umask that closes nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.usefixtures("open_umask")
async def test_all_files_are_private_from_their_creation(tmp_path: Path) -> None:
    """Before, the umask decided: with the usual one, every user of the machine could read secrets and payloads."""
    seen: list[dict[str, int]] = []
    store = SqliteStore(tmp_path / "x.db", failpoint=lambda _: seen.append(modes(tmp_path)))
    await store.open()
    seen.append(modes(tmp_path))
    await store.close()
    assert set(seen[-1]) == {"x.db", "x.db-wal", "x.db-shm"}
    assert {mode for found in seen for mode in found.values()} == {0o600}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.usefixtures("open_umask")
async def test_another_user_cannot_read_the_signing_secret(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")
    await ms.schedule("call", Http("http://127.0.0.1:9/"), every="1h")
    secret = await ms.signing_secret("call")
    assert any(secret.encode() in (tmp_path / path).read_bytes() for path in modes(tmp_path))
    for path in modes(tmp_path):
        child = await asyncio.create_subprocess_exec("cat", tmp_path / path, user=NOBODY, stderr=subprocess.PIPE)
        assert b"Permission denied" in (await child.communicate())[1], f"{path} can be read"
    await ms.close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o604])
@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_that_others_may_use_is_refused_with_the_remedy(tmp_path: Path, mode: int, suffix: str) -> None:
    path = tmp_path / "my jobs.db"
    store = SqliteStore(path)
    await store.open()
    other = SqliteStore(path)
    (tmp_path / f"my jobs.db{suffix}").chmod(mode)
    with pytest.raises(StoreDenied) as refused:
        await other.open()
    assert f"chmod 600 '{path}{suffix}'. " in str(refused.value)
    assert f"{mode:04o}" in str(refused.value)
    assert "?shared=1" in str(refused.value)
    (tmp_path / f"my jobs.db{suffix}").chmod(0o600)
    await other.open()
    await other.close()
    await store.close()


async def test_the_remedy_names_the_files_that_exist_and_the_url(tmp_path: Path) -> None:
    """SQLite adds files while the database is open, and removes them when the refused program closes it."""
    path = tmp_path / "my jobs.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    path.chmod(0o644)
    with pytest.raises(StoreDenied) as refused:
        await store.open()
    assert f"chmod 600 '{path}'. " in str(refused.value)
    url = f"sqlite:///{tmp_path}/my%20jobs.db?shared=1"
    assert str(refused.value).endswith(f"write {url}")
    shared = open_store(url, SystemClock())
    await shared.open()
    await shared.close()
    path.chmod(0o600)


@pytest.mark.usefixtures("open_umask")
async def test_a_shared_file_is_opened_and_created_as_the_umask_says(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db?shared=1", SystemClock())
    await store.open()
    assert set(modes(tmp_path).values()) == {0o644}  # SQLite itself creates files with this mode
    await store.close()
    with pytest.raises(StoreError, match="may read or write it"):
        await SqliteStore(tmp_path / "x.db").open()
    (tmp_path / "x.db").chmod(0o600)


@pytest.mark.usefixtures("open_umask")
async def test_the_target_of_a_link_is_created_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "x.db").symlink_to(tmp_path / "data" / "real.db")
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    assert set(modes(tmp_path / "data").values()) == {0o600}
    await store.close()
    (tmp_path / "data" / "real.db").chmod(0o644)
    with pytest.raises(StoreDenied):
        await SqliteStore(tmp_path / "x.db").open()
    (tmp_path / "data" / "real.db").chmod(0o600)


@pytest.mark.usefixtures("open_umask")
def test_a_system_without_mknod_creates_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "mknod")
    create_private_file(str(tmp_path / "x.db"))
    assert modes(tmp_path) == {"x.db": 0o600}


async def test_stores_that_are_opened_at_once_in_one_process_keep_their_locks(tmp_path: Path) -> None:
    """Closing any descriptor of a file ends this process's locks on it: the creation must not open the file."""
    path = tmp_path / "x.db"
    stores = [SqliteStore(path) for _ in range(8)]
    threads = [threading.Thread(target=store._db.open) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with stores[0]._db.write("test"):
        second = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("BEGIN IMMEDIATE")
        second.close()
    for store in stores:
        await store.close()
