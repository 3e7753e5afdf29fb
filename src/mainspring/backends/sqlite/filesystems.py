"""The file system that a path is on, read from the text of a mount table."""

from __future__ import annotations

import re

#: Types of file systems that other machines share, as a mount table names them.
_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fhgfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "mfs",
        "ncpfs",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "sshfs",
        "vboxsf",
        "vmhgfs",
        "fuse",
    }
)
#: Beginnings of further types, such as nfs4 and smb3.
_NETWORK_PREFIXES = ("nfs", "smb", "ceph")
#: FUSE file systems on this machine's own disks; any other `fuse.…` counts as remote.
_LOCAL_FUSE = frozenset(
    {
        "fuse-overlayfs",
        "overlayfs",
        "ntfs",
        "ntfs-3g",
        "ntfs3g",
        "exfat",
        "ext2",
        "ext4",
        "mergerfs",
        "bindfs",
        "encfs",
        "gocryptfs",
        "cryfs",
        "lxcfs",
        "zfs",
        "unionfs",
        "unionfs-fuse",
        "squashfuse",
        "fuse2fs",
        "apfs",
        "fusefat",
    }
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: str, mounts: str) -> str | None:
    """Return the type of the file system that holds the absolute `path`, None if no mount point is above it.

    `mounts` is the text of a mount table such as /proc/self/mounts. The longest mount point above the path decides. If
    several file systems are mounted there, the last of them decides.
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        target = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[1])
        holds = path == target or path.startswith(target.rstrip("/") + "/")
        if holds and (best is None or len(target) >= best[0]):
            best = (len(target), fields[2])
    return best[1] if best is not None else None


def is_network(fstype: str) -> bool:
    """Return True for a type of file system, such as "nfs4", on which SQLite's locks and shared memory may fail."""
    kind, _, served = fstype.lower().partition(".")
    if kind == "fuse" and served:
        return served not in _LOCAL_FUSE
    return kind in _NETWORK or kind.startswith(_NETWORK_PREFIXES)
