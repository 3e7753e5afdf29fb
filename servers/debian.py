"""Programs of Debian packages without root: downloaded by apt, unpacked beside the virtual environment's own.

    python -m servers.debian        fetches what the tests can use; says why when that is not possible

Nothing is installed, nothing of the system is changed: where apt has no lists yet, it gets a place of its own for them.
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
_SECONDS = 120


class NotFetched(Exception):
    """Why there are no packages."""


def fetch(packages: tuple[str, ...] = PACKAGES, place: Path = PLACE) -> None:
    """Unpack packages into a folder, which appears when all are there."""
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
    """A command that starts an unpacked program with the libraries beside it; None where it was not fetched."""
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
    """Options of apt: no other user for downloads, then places that anybody may write to."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    return [
        "--option=APT::Sandbox::User=root",
        f"--option=Dir::State::lists={folder / 'lists'}",
        f"--option=Dir::Cache={folder / 'cache'}",
    ]


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_SECONDS)
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
