"""The floor: what plain `sqlite3` can do with our tables, and no engine around it.

Batches of 100: one transaction to claim with `RunStarted`, one to finish with `RunSucceeded`, `executemany`, whole
run rows read and written, the same schema, indexes and PRAGMAs as our store, one process, one thread.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from bench.contenders.common import Figures, Meter, durability_of, main, path_in, rate

BATCH = 100
FILL_BATCH = 1_000
OWNER = "floor.example:4242:a1b2c3"
LEASE_MS = 30_000
#: As wide as the marks of our store.
MARK = 0x3FFF_0000_0000_0000

#: As in `mainspring.backends.sqlite.database`.
PRAGMAS = (
    "busy_timeout = 5000",
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = OFF",
    "temp_store = MEMORY",
    "cache_size = -16384",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
    "secure_delete = FAST",
)


def connect(path: str) -> sqlite3.Connection:
    Path(path).touch(0o600)  # our store refuses files that other users may read
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    for script in sorted(schema().glob("*.sql")):
        connection.executescript(script.read_text(encoding="utf-8"))
    return connection


def schema() -> Path:
    """Where the SQL of our store is, in the checkout that is measured."""
    source = Path(os.environ.get("MAINSPRING_SRC") or Path(__file__).parents[2] / "src")
    return source / "mainspring" / "backends" / "sqlite" / "sql"


def _now() -> int:
    return time.time_ns() // 1_000_000


class Table:
    """A table of ours as the schema says it is; a column added later that must have a value gets the emptiest."""

    def __init__(self, connection: sqlite3.Connection, name: str, key: str) -> None:
        info = connection.execute(f"PRAGMA table_info({name})").fetchall()
        self.columns = [row[1] for row in info if row[1] != key]
        self._empty = {row[1]: ("" if "TEXT" in row[2] else 0) if row[3] and row[4] is None else None for row in info}
        self._name = name

    def insert(self, *given: str, **constant: str | int) -> str:
        """A statement that binds what is given, and holds what is the same for every row."""
        values = dict.fromkeys(given, "?") | {name: _literal(value) for name, value in constant.items()}
        for name in self.columns:
            if name not in values and self._empty[name] is not None:
                values[name] = _literal(self._empty[name])
        return f"INSERT INTO {self._name} ({', '.join(values)}) VALUES ({', '.join(values.values())})"


def _literal(value: str | int | None) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


_numbers = itertools.count()


def _new_id(now: int) -> str:
    """As wide as a UUID and, like those of ours, in the order of time."""
    return f"{now:012x}-{next(_numbers):010x}-8a1b-2c3d4e5f"


_CLAIM = """
SELECT * FROM run INDEXED BY run_claim
WHERE lane = 'default/default' AND priority = 2 AND ready_at <= ?
  AND state IN ('waiting', 'retrying') AND parked_on IS NULL
ORDER BY ready_at, id LIMIT ?
"""
_START = """
UPDATE run SET state = 'running', n = n + 1, epoch = epoch + 1, attempt = attempt + 1,
               owner = ?, lease_until = ?, started_at = ? WHERE rid = ?
"""
_FINISH = """
UPDATE run SET state = 'succeeded', n = n + 1, began_at = ?, ms = 0, ended_at = ?, owner = NULL, lease_until = NULL
WHERE rid = ? AND state = 'running' AND epoch = ?
"""


class Floor:
    """A file of ours, filled and drained by hand."""

    def __init__(self, path: str) -> None:
        self.db = connect(path)
        names = [row[1] for row in self.db.execute("PRAGMA table_info(run)")]
        self._rid, self._epoch, self._attempt = (names.index(name) for name in ("rid", "epoch", "attempt"))
        self._changes = itertools.count(1)
        run, event = Table(self.db, "run", "rid"), Table(self.db, "event", "seq")
        self._new_run = run.insert(
            "id", "due_at", "ready_at", "created_at", "mark",
            ns="default", task="nothing", origin="enqueue", catch_up=0, lane="default/default", priority=2,
            state="waiting", n=1,
        )  # fmt: skip
        every: dict[str, Any] = {"ns": "default", "v": 1}
        self._scheduled = event.insert("at", "rid", "run_ref", "change", "data", n=1, type="RunScheduled", **every)
        self._started = event.insert("at", "rid", "epoch", "attempt", "owner", n=2, type="RunStarted", **every)
        self._succeeded = event.insert(
            "at", "rid", "change", "epoch", "attempt", "data", n=3, type="RunSucceeded", **every
        )

    def fill(self, n: int) -> None:
        """Insert waiting runs with their first event, a thousand to a commit."""
        for start in range(0, n, FILL_BATCH):
            now = _now()
            ids = [_new_id(now) for _ in range(min(FILL_BATCH, n - start))]
            born = _BORN % now
            self.db.execute("BEGIN IMMEDIATE")
            first = self.db.execute("SELECT ifnull(max(rid), 0) + 1 FROM run").fetchone()[0]
            self.db.executemany(self._new_run, [(name, now, now, now, MARK) for name in ids])
            self.db.executemany(
                self._scheduled, [(now, rid, name, self._change(), born) for rid, name in enumerate(ids, first)]
            )
            self.db.execute("COMMIT")

    def _change(self) -> str:
        return f"0a1b2c3d4e{next(self._changes):x}"

    def insert_one(self) -> None:
        """A bare single-row commit: one whole run row and nothing else."""
        now = _now()
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(self._new_run, (_new_id(now), now, now, now, MARK))
        self.db.execute("COMMIT")

    def drain(self) -> int:
        """Claim, run and finish batch after batch; how many."""
        done = 0
        while batch := self._claim():
            for _ in batch:
                nothing()
            self._finish(batch)
            done += len(batch)
        return done

    def _claim(self) -> list[tuple[Any, ...]]:
        now, rid, epoch, attempt = _now(), self._rid, self._epoch, self._attempt
        until = now + LEASE_MS
        self.db.execute("BEGIN IMMEDIATE")
        rows = self.db.execute(_CLAIM, (now, BATCH)).fetchall()
        self.db.executemany(_START, [(OWNER, until, now, row[rid]) for row in rows])
        started = [(now, row[rid], row[epoch] + 1, row[attempt] + 1, OWNER) for row in rows]
        self.db.executemany(self._started, started)
        self.db.execute("COMMIT")
        return rows

    def _finish(self, rows: list[tuple[Any, ...]]) -> None:
        now, rid, epoch, attempt = _now(), self._rid, self._epoch, self._attempt
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(_FINISH, [(now, now, row[rid], row[epoch] + 1) for row in rows])
        ended = [
            (now, row[rid], self._change(), row[epoch] + 1, row[attempt] + 1, f'{{"began_at":{now},"ms":0}}')
            for row in rows
        ]
        self.db.executemany(self._succeeded, ended)
        self.db.execute("COMMIT")


_BORN = '{"task":"nothing","due_at":%d,"lane":"default/default","priority":2}'


def nothing() -> None:
    """The work."""


def drain(folder: str, n: int) -> Figures:
    floor = Floor(path_in(folder, "floor.db"))
    meter = Meter()
    floor.fill(n)
    filled = meter.wall()
    meter = Meter()
    done = floor.drain()
    seconds, cpu = meter.wall(), meter.cpu()
    whole = floor.db.execute(
        "SELECT count(*) FROM run "
        "WHERE state = 'succeeded' AND n = 3 AND epoch = 1 AND attempt = 1 AND began_at NOTNULL AND ended_at NOTNULL"
    ).fetchone()[0]
    events = floor.db.execute("SELECT count(*) FROM event").fetchone()[0]
    if not done == whole == n or events != 3 * n:
        raise SystemExit(f"of {n} runs {done} were drained, {whole} are whole, with {events} events")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": durability_of(floor.db),
    }


def enqueue_one(folder: str, n: int) -> Figures:
    floor = Floor(path_in(folder, "floor.db"))
    for _ in range(100):
        floor.insert_one()
    meter = Meter()
    for _ in range(n):
        floor.insert_one()
    seconds = meter.wall()
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": meter.cpu() / n * 1e6,
        "durability": durability_of(floor.db),
    }


def enqueue_bulk(folder: str, n: int) -> Figures:
    floor = Floor(path_in(folder, "floor.db"))
    meter = Meter()
    floor.fill(n)
    return {"n": n, "per_second": rate(n, meter.wall()), "durability": durability_of(floor.db)}


if __name__ == "__main__":
    main({"drain": drain, "enqueue_one": enqueue_one, "enqueue_bulk": enqueue_bulk})
