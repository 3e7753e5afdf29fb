"""Where a store may live: URLs, and which file systems count as the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite.filesystems import filesystem_of, is_network
from mainspring.model.errors import InvalidInput, StoreUnavailable
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Runs
from mainspring.runtime.store_url import open_store

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
//host/share /mnt/share cifs rw 0 0
host /mnt/host 9p rw 0 0
me@host:/ /mnt/ssh fuse.sshfs rw 0 0
/dev/sdb1 /mnt/nfs/local ext4 rw 0 0
/dev/sdc1 /mnt/usb fuseblk rw 0 0
pool /mnt/with\\040space ceph rw 0 0
/dev/sdd1 /over nfs rw 0 0
/dev/sdd1 /over xfs rw 0 0
overlay /var/lib overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "fstype", "network"),
    [
        ("/home/me", "ext4", False),
        ("/mnt/nfs", "nfs4", True),
        ("/mnt/nfs/deep/er", "nfs4", True),
        ("/mnt/nfsother", "ext4", False),
        ("/mnt/nfs/local/x", "ext4", False),
        ("/mnt/share/x", "cifs", True),
        ("/mnt/host", "9p", True),
        ("/mnt/ssh/x", "fuse.sshfs", True),
        ("/mnt/usb", "fuseblk", False),
        ("/mnt/with space/x", "ceph", True),
        ("/over/x", "xfs", False),
        ("/var/lib/x", "overlay", False),
    ],
)
def test_network_file_systems_are_found(path: str, fstype: str, network: bool) -> None:
    assert filesystem_of(path, MOUNTS) == fstype
    assert is_network(fstype) is network


@pytest.mark.parametrize("fstype", ["smb3", "smbfs", "glusterfs", "fuse.glusterfs", "lustre", "fuse.rclone", "fuse"])
def test_more_network_file_systems(fstype: str) -> None:
    assert is_network(fstype)


# ── URLs ────────────────────────────────────────────────────────────────────


async def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, file in (
        ("sqlite:///relative.db", "relative.db"),
        (f"sqlite:///{tmp_path}/absolute.db?synchronous=normal&force=1", "absolute.db"),
        ("sqlite:///with%20space%23.db", "with space#.db"),
    ):
        store = open_store(url, SystemClock())
        await store.open()
        await store.close()
        assert (tmp_path / file).exists()
    assert not open_store("memory://", SystemClock()).capabilities.durable


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://host", "no mongodb store yet"),
        ("sqlit:///x.db", "Did you mean 'sqlite'"),
        ("mysql://x", "Known are memory, sqlite"),
        ("ledger.db", "not a store URL"),
        ("sqlite://ledger.db", "third slash"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?syncronous=full", "Did you mean 'synchronous'"),
        ("sqlite:///x.db?synchronous=off", "synchronous='off'"),
        ("sqlite:///x.db?force=perhaps", "force='perhaps'"),
        ("memory://here", "names a place"),
    ],
)
def test_bad_urls_say_what_would_be_right(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match="url: ") as caught:
        open_store(url, SystemClock())
    assert says in str(caught.value)


async def test_a_file_removed_while_it_is_open_is_noticed_and_nothing_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "gone.db"
    store = SqliteStore(path)
    await store.open()
    await store.wait(0.01)
    path.rename(tmp_path / "elsewhere.db")
    await store.wait(0.2)
    with pytest.raises(StoreUnavailable, match="removed or replaced while it was open"):
        await store.find(Runs())
    (tmp_path / "elsewhere.db").rename(path)
    await store.close()
