"""Programs of Debian packages, fetched without root: apt downloads them, and they are unpacked in the environment.

    python -m servers.debian        fetches the programs that tests use, or prints why that is not possible

Nothing is installed and nothing of the system is changed. If apt has no package lists, they are downloaded into a
temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: PgBouncer and a Redis that was built with TLS, with those of their libraries that a small machine may not have.
PACKAGES = (
    *("pgbouncer", "libevent-2.1-7", "libc-ares2"),
    *("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1"),
)
PLACE = Path(sys.prefix) / "debian"
_COMMAND_TIMEOUT_SECONDS = 120


class NotFetched(Exception):
    """Raised if the packages cannot be downloaded or unpacked; the message is the reason."""


def fetch(packages: tuple[str, ...] = PACKAGES, place: Path = PLACE) -> None:
    """Download packages and unpack them into the folder `place`; do nothing if it exists.

    `place` is created by one rename after all packages were unpacked, so it is complete whenever it exists. Raises:
    NotFetched.
    """
    if place.exists():
        return
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise NotFetched(f"no {' and no '.join(missing)} on this machine")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="debian-") as name:
        folder = Path(name)
        own = _own_lists(folder)
        try:
            _run(["apt-get", *own[:1], "download", *packages], folder)
        except NotFetched:
            _run(["apt-get", *own, "update"], folder)
            _run(["apt-get", *own, "download", *packages], folder)
        root = folder / "root"
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)], folder)
        root.chmod(0o755)
        root.rename(place)


def program(path: str, place: Path = PLACE) -> Path | None:
    """Return a script that starts an unpacked program with its unpacked libraries; None if it was not fetched.

    `path`: the program's path inside `place`. Why a script: the program finds its libraries by a variable.
    """
    if not os.access(place / path, os.X_OK):
        return None
    command = place / "run" / Path(path).name
    if not command.exists():
        libraries = ":".join(sorted({str(library.parent) for library in place.glob("usr/lib/*/*.so*")}))
        command.parent.mkdir(exist_ok=True)
        written = command.with_suffix(f".{os.getpid()}")
        written.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {place / path} "$@"\n', encoding="utf-8")
        written.chmod(0o755)
        written.rename(command)
    return command


def _own_lists(folder: Path) -> list[str]:
    """Return options for apt: download as the current user; keep lists and cache in `folder`, which this user owns."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    return [
        "--option=APT::Sandbox::User=root",
        f"--option=Dir::State::lists={folder / 'lists'}",
        f"--option=Dir::Cache={folder / 'cache'}",
    ]


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise NotFetched(f"{' '.join(command[:1])}: {said[-1] if said else error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFetched(str(error)) from error


def main() -> None:
    try:
        fetch()
    except NotFetched as error:
        print(f"no Debian packages, so tests through PgBouncer and TLS are skipped unless these are installed: {error}")


if __name__ == "__main__":
    main()
