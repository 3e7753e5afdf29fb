"""PgBouncer in transaction mode between a test and a PostgreSQL server, if the machine has PgBouncer."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from servers.debian import PLACE
from servers.postgres import NOBODY, Unavailable, die_with_parent, free_port

_SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {mine}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {folder}/log
pidfile =
"""


def pgbouncer_url(url: str) -> str:
    """Start a PgBouncer before the server at `url`, and return the URL through it; it stops with this process.

    Raises: Unavailable if there is no PgBouncer, or if it does not start.
    """
    parts = urlsplit(url)
    folder = Path(tempfile.mkdtemp(prefix="mainspring-bouncer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program, env = _program(folder)
    port = free_port()
    text = _SETTINGS.format(
        host=parts.hostname, port=parts.port or 5432, user=parts.username or "postgres", mine=port, folder=folder
    )
    (folder / "settings.ini").write_text(text, encoding="utf-8")
    user = NOBODY if os.getuid() == 0 else None  # PgBouncer refuses to run as root
    if user is not None:
        os.chown(folder, user, user)
    folder.chmod(0o755)
    process = subprocess.Popen(
        [program, folder / "settings.ini"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    atexit.register(process.wait)
    atexit.register(process.kill)
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return urlunsplit(parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{port}"))
        time.sleep(0.02)
    raise Unavailable(f"pgbouncer did not start: {(folder / 'log').read_text(encoding='utf-8')}")


def _program(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the path of PgBouncer and the environment to run it in. Raises: Unavailable.

    It is the machine's, else a copy in `folder` of the one that `servers.debian` fetched: the user NOBODY may not be
    able to read the original.
    """
    env = dict(os.environ)
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is not None:
        return found, env
    unpacked = PLACE / "usr" / "sbin" / "pgbouncer"
    if not unpacked.exists():
        raise Unavailable(
            "there is no pgbouncer on this machine, and none was fetched (python -m servers.debian says why)"
        )
    program = shutil.copy(unpacked, folder)
    for library in PLACE.glob("usr/lib/*/*.so*"):
        shutil.copy(library, folder)
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), env.get("LD_LIBRARY_PATH"))))
    return str(program), env
