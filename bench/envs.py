"""A virtual environment for each contender, with pinned versions; made once and used again."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Environments, prepared files and scratch space; not in `bench/`, so that no tool takes them for sources.
PLACE = ROOT / ".bench"


@dataclass(frozen=True)
class Contender:
    """Who takes part: its module, what its environment needs, how it is called in tables."""

    key: str
    label: str
    module: str
    packages: tuple[str, ...] = ()


CONTENDERS = {
    one.key: one
    for one in (
        Contender("mainspring", "Mainspring", "bench.contenders.mainspring_", ("--editable", str(ROOT))),
        Contender("floor", "floor (bare sqlite3)", "bench.contenders.floor"),
        Contender("huey", "SqliteHuey", "bench.contenders.huey_", ("huey==3.5.4",)),
        Contender(
            "apscheduler3",
            "APScheduler 3",
            "bench.contenders.apscheduler3",
            ("apscheduler==3.11.3", "sqlalchemy==2.1.8", "greenlet==3.5.6"),
        ),
        Contender(
            "apscheduler4",
            "APScheduler 4 (pre-release)",
            "bench.contenders.apscheduler4",
            # sniffio is imported by its SQLAlchemy store and required by nothing
            ("apscheduler==4.0.0a6", "sqlalchemy==2.1.8", "greenlet==3.5.6", "aiosqlite==0.22.1", "sniffio==1.3.1"),
        ),
    )
}


class NotInstalled(Exception):
    """The environment could not be made; the message is the reason."""


def python_of(contender: Contender, *, here: bool = False) -> str:
    """The interpreter that runs a contender; its environment is made when it is missing or its pins have changed."""
    if here:
        return sys.executable
    folder = PLACE / "envs" / contender.key
    python = folder / "bin" / "python"
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = hashlib.sha256(repr((sys.version, contender.packages, ours)).encode()).hexdigest()
    stamp = folder / ".pins"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    without = () if contender.packages else ("--without-pip",)
    _run([sys.executable, "-m", "venv", "--clear", *without, str(folder)])
    if contender.packages:
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contender.packages])
    stamp.write_text(wanted)
    return str(python)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotInstalled(errors[-1] if errors else f"{command[0]} failed")
