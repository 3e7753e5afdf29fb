"""Virtual environments with pinned versions, one for each contender, created once and reused."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Folder of environments, prepared files and scratch space; outside `bench/`, where tools would read them as sources.
PLACE = ROOT / ".bench"
#: Versions of the drivers, equal for all contenders that use them.
ASYNCPG, PSYCOPG, UVLOOP = "asyncpg==0.32.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"
REDIS, HIREDIS = "redis==8.1.0", "hiredis==3.5.0"
#: The contender that uses both servers.
PAIR = "bench.contenders.redis.mainspring_pair"


@dataclass(frozen=True)
class Contender:
    """One participant of the benchmark: its module, the packages of its environment, its name in tables."""

    key: str
    label: str
    module: str
    packages: tuple[str, ...] = ()
    #: The oldest Python version that it runs on.
    least: tuple[int, int] = (3, 11)
    #: Kind of its bar in a chart: ours, floor or other.
    kind: str = "other"

    @property
    def on_server(self) -> bool:
        """True if it uses a PostgreSQL database."""
        return self.module.startswith("bench.contenders.postgres.") or self.module == PAIR

    @property
    def on_redis(self) -> bool:
        """True if it uses a Redis or Valkey server."""
        return self.module.startswith("bench.contenders.redis.")


CONTENDERS = {
    one.key: one
    for one in (
        Contender("mainspring", "Mainspring", "bench.contenders.mainspring_", ("--editable", str(ROOT)), kind="ours"),
        Contender("floor", "floor (bare sqlite3)", "bench.contenders.floor", kind="floor"),
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
        Contender(
            "service",
            "mainspring serve",
            "bench.contenders.mainspring_service",
            ("--editable", f"{ROOT}[serve]"),
            kind="ours",
        ),
        Contender(
            "floor-calls", "floor (bare aiohttp)", "bench.contenders.agent_calls", ("aiohttp==3.14.5",), kind="floor"
        ),
        # ── on PostgreSQL ──
        Contender(
            "mainspring-pg",
            "Mainspring",
            "bench.contenders.postgres.mainspring_",
            ("--editable", f"{ROOT}[postgres]", ASYNCPG),
            kind="ours",
        ),
        Contender("floor-pg", "floor (bare asyncpg)", "bench.contenders.postgres.floor", (ASYNCPG,), kind="floor"),
        Contender("pgqueuer", "pgqueuer", "bench.contenders.postgres.pgqueuer_", ("pgqueuer==1.6.0", ASYNCPG, UVLOOP)),
        Contender(
            "procrastinate",
            "Procrastinate",
            "bench.contenders.postgres.procrastinate_",
            ("procrastinate==3.10.0", PSYCOPG),
        ),
        Contender("chancy", "Chancy", "bench.contenders.postgres.chancy_", ("chancy==0.26.0", PSYCOPG)),
        Contender(
            "oban", "Oban for Python", "bench.contenders.postgres.oban_", ("oban==0.7.0", PSYCOPG, UVLOOP), (3, 12)
        ),
        Contender("dbos", "DBOS", "bench.contenders.postgres.dbos_", ("dbos==3.3.0", PSYCOPG)),
        Contender("saq", "SAQ", "bench.contenders.postgres.saq_", ("saq[postgres]==0.26.4", PSYCOPG)),
        Contender(
            "apscheduler4-pg",
            "APScheduler 4 (pre-release)",
            "bench.contenders.postgres.apscheduler4",
            ("apscheduler==4.0.0a6", "sqlalchemy==2.1.8", "greenlet==3.5.6", ASYNCPG, "sniffio==1.3.1"),
        ),
        # ── on Redis or Valkey ──
        Contender(
            "mainspring-redis",
            "Mainspring",
            "bench.contenders.redis.mainspring_",
            ("--editable", f"{ROOT}[redis]", REDIS, HIREDIS),
            kind="ours",
        ),
        Contender(
            "mainspring-pair",
            "Mainspring",
            PAIR,
            ("--editable", f"{ROOT}[postgres,redis]", ASYNCPG, REDIS, HIREDIS),
            kind="ours",
        ),
        Contender("floor-redis", "floor (bare Lua)", "bench.contenders.redis.floor", (REDIS, HIREDIS), kind="floor"),
        Contender(
            "taskiq",
            "taskiq",
            "bench.contenders.redis.taskiq_",
            ("taskiq==0.13.0", "taskiq-redis==1.2.4", UVLOOP, HIREDIS),
        ),
        Contender("dramatiq", "dramatiq", "bench.contenders.redis.dramatiq_", ("dramatiq==2.2.1", REDIS, HIREDIS)),
        Contender(
            "saq-redis",
            "SAQ",
            "bench.contenders.redis.saq_",
            ("saq[redis]==0.26.4", "typing-extensions==4.15.0", UVLOOP, HIREDIS),
        ),
        # which wants redis-py below 6
        Contender("arq", "arq", "bench.contenders.redis.arq_", ("arq==0.28.0", UVLOOP, HIREDIS)),
        Contender("celery", "Celery", "bench.contenders.redis.celery_", ("celery[redis]==5.7.0", HIREDIS)),
        Contender("rq", "RQ", "bench.contenders.redis.rq_", ("rq==2.12.0", REDIS, HIREDIS)),
        Contender("huey-redis", "Huey", "bench.contenders.redis.huey_", ("huey==3.5.4", REDIS, HIREDIS)),
    )
}


class NotInstalled(Exception):
    """Raised if an environment could not be created; the message has the reason."""


def python_of(contender: Contender, *, here: bool = False) -> str:
    """Return the interpreter of a contender; create its environment if it is missing or its pins have changed."""
    if here:
        return sys.executable
    base = interpreter(contender.least)
    which = sys.version if base == sys.executable else base
    folder = PLACE / "envs" / contender.key
    python = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"] if contender.kind == "ours" else {}
    ours = project.get("dependencies")
    wanted = hashlib.sha256(repr((which, contender.packages, ours)).encode()).hexdigest()
    stamp = folder / ".pins"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    without = () if contender.packages else ("--without-pip",)
    _run([base, "-m", "venv", "--clear", *without, str(folder)])
    if contender.packages:
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contender.packages])
    stamp.write_text(wanted)
    return str(python)


@cache
def interpreter(least: tuple[int, int]) -> str:
    """Return a Python that is new enough: this one, or one on PATH or under pyenv."""
    if sys.version_info >= least:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    places = [found for name in names if (found := shutil.which(name))]
    for name in names:
        places += map(str, sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}")))
    for place in places:  # a pyenv shim of a version that is not enabled exists, but fails
        test = f"import sys, venv; sys.exit(sys.version_info < {least})"
        if subprocess.run([place, "-c", test], capture_output=True, check=False).returncode == 0:
            return place
    raise NotInstalled(f"needs Python ≥ {least[0]}.{least[1]}, and there is only {sys.version.split()[0]} here")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotInstalled(errors[-1] if errors else f"{command[0]} failed")
