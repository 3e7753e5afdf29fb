"""The floor on PostgreSQL: what bare asyncpg can do with our tables, and no engine around it.

Batches of 100 on one connection: one statement to claim with `RunStarted`, one to finish with `RunSucceeded`, arrays
bound, whole run rows read and written, the same schema, indexes and settings of the session as our store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench.contenders.common import Figures, Meter, main, rate
from bench.contenders.postgres.drivers import durability_by_asyncpg

BATCH = 100
FILL_BATCH = 1_000
OWNER = "floor.example:4242:a1b2c3"
LEASE_MS = 30_000
SCHEMA = "mainspring"
#: As in `mainspring.backends.postgres.database`.
SESSION = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}
#: What every run of ours is born with, beside its id and its times.
BORN = {
    "ns": "default",
    "task": "nothing",
    "origin": "enqueue",
    "lane": "default/default",
    "priority": 2,
    "state": "waiting",
    "n": 1,
}


def scripts() -> list[str]:
    """The SQL of our store, in the checkout that is measured."""
    source = Path(os.environ.get("MAINSPRING_SRC") or Path(__file__).parents[3] / "src")
    folder = source / "mainspring" / "backends" / "postgres" / "sql"
    return [path.read_text(encoding="utf-8").replace("§", f"{SCHEMA}.") for path in sorted(folder.glob("*.sql"))]


class Table:
    """A table as the server has it; a column that must have a value and was not given one gets the emptiest."""

    def __init__(self, name: str, columns: list[Any]) -> None:
        self.name = f"{SCHEMA}.{name}"
        self.types = {column["name"]: column["type"] for column in columns}
        self._needed = [column["name"] for column in columns if column["needed"]]

    @classmethod
    async def read(cls, connection: Any, name: str) -> Table:
        columns = await connection.fetch(
            "SELECT attname AS name, format_type(atttypid, NULL) AS type,"
            " attnotnull AND NOT atthasdef AND attidentity = '' AS needed"
            " FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            f"{SCHEMA}.{name}",
        )
        return cls(name, columns)

    def insert(self, **values: Any) -> str:
        """`INSERT INTO … SELECT …`, to be followed by FROM; a value in a tuple is an expression."""
        full = values | {name: self._emptiest(name) for name in self._needed if name not in values}
        chosen = ", ".join(f"{self._sql(value)}::{self.types[name]}" for name, value in full.items())
        return f"INSERT INTO {self.name} ({', '.join(full)}) SELECT {chosen}"

    def _emptiest(self, name: str) -> Any:
        kind = self.types[name]
        return ("false",) if kind == "boolean" else 0 if "int" in kind else ""

    @staticmethod
    def _sql(value: Any) -> str:
        if isinstance(value, tuple):
            return str(value[0])
        return f"'{value}'" if isinstance(value, str) else str(value)


_numbers = itertools.count()


def _new_id(now: int) -> str:
    """Like those of ours: in the form of a UUID and in the order of time."""
    number = f"{next(_numbers):018x}"
    return f"{now:012x}"[:8] + "-" + f"{now:012x}"[8:] + f"-7{number[:3]}-8{number[3:6]}-{number[6:]}"


def _now() -> int:
    return time.time_ns() // 1_000_000


class Floor:
    """A database with our tables, filled and drained by hand."""

    def __init__(self, connection: Any, run: Table, event: Table) -> None:
        self.connection = connection
        self._changes = itertools.count(1)
        born = {**BORN, "due_at": ("$2",), "ready_at": ("$2",), "created_at": ("$2",)}
        every: dict[str, Any] = {"ns": "default", "v": 1}
        self._new_run = run.insert(id=("$1",), **born)
        scheduled = event.insert(
            at=("$2",), run_id=("i.id",), n=1, type="RunScheduled", change=("i.change",), data=("i.data",), **every
        )
        self._fill = f"""
WITH i AS MATERIALIZED (SELECT * FROM unnest($1::text[], $3::text[], $4::text[]) AS i(id, change, data)),
e AS ({scheduled} FROM i)
{run.insert(id=("i.id",), **born)} FROM i
"""
        columns = ", ".join(f"r.{name}" for name in run.types)
        started = event.insert(
            at=("$1",), run_id=("u.id",), n=("u.n",), type="RunStarted", epoch=("u.epoch",), attempt=("u.attempt",),
            owner=("u.owner",), **every,
        )  # fmt: skip
        self._claim = f"""
WITH c AS MATERIALIZED (
    SELECT id FROM {run.name}
    WHERE lane = 'default/default' AND priority = 2 AND ready_at <= $1::bigint
      AND state IN ('waiting', 'retrying') AND parked_on IS NULL
    ORDER BY ready_at, id LIMIT {BATCH} FOR UPDATE SKIP LOCKED),
u AS (
    UPDATE {run.name} r SET state = 'running', n = r.n + 1, epoch = r.epoch + 1, attempt = r.attempt + 1,
        owner = $2, lease_until = $1::bigint + {LEASE_MS}, started_at = $1::bigint
    FROM c WHERE r.id = c.id RETURNING {columns}),
e AS ({started} FROM u)
SELECT * FROM u
"""
        succeeded = event.insert(
            at=("$1",), run_id=("u.id",), n=("u.n",), type="RunSucceeded", epoch=("u.epoch",), attempt=("u.attempt",),
            change=("u.change",), data=("$5",), **every,
        )  # fmt: skip
        self._finish = f"""
WITH u AS (
    UPDATE {run.name} r SET state = 'succeeded', n = r.n + 1, began_at = $1::bigint, ms = 0, ended_at = $1::bigint,
        owner = NULL, lease_until = NULL
    FROM unnest($2::text[], $3::integer[], $4::text[]) AS i(id, epoch, change)
    WHERE r.id = i.id::{run.types["id"]} AND r.state = 'running' AND r.epoch = i.epoch
    RETURNING r.id, r.n, r.epoch, r.attempt, i.change)
{succeeded} FROM u
"""

    @classmethod
    async def open(cls, url: str) -> Floor:
        """The tables are made unless they are there."""
        connection = await asyncpg.connect(url, server_settings=SESSION)
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", SCHEMA):
            await connection.execute(f"CREATE SCHEMA {SCHEMA}")
            for script in scripts():
                await connection.execute(script)
        return cls(connection, await Table.read(connection, "run"), await Table.read(connection, "event"))

    async def fill(self, n: int) -> None:
        """Insert waiting runs with their first event, a thousand to a statement."""
        for start in range(0, n, FILL_BATCH):
            now = _now()
            count = min(FILL_BATCH, n - start)
            ids, changes = [_new_id(now) for _ in range(count)], [self._change() for _ in range(count)]
            born = f'{{"task":"nothing","due_at":{now},"lane":"default/default","priority":2}}'
            await self.connection.execute(self._fill, ids, now, changes, [born] * count)

    def _change(self) -> str:
        return f"0a1b2c3d4e{next(self._changes):x}"

    async def insert_one(self) -> None:
        """A bare single insert: one whole run row and nothing else."""
        now = _now()
        await self.connection.execute(self._new_run, _new_id(now), now)

    async def drain(self) -> int:
        """Claim, run and finish batch after batch; how many."""
        done = 0
        while rows := await self.connection.fetch(self._claim, _now(), OWNER):
            for _ in rows:
                nothing()
            now = _now()
            ids, epochs = [str(row["id"]) for row in rows], [row["epoch"] for row in rows]
            changes = [self._change() for _ in rows]
            await self.connection.execute(self._finish, now, ids, epochs, changes, f'{{"began_at":{now},"ms":0}}')
            done += len(rows)
        return done


def nothing() -> None:
    """The work."""


async def _drain(url: str, n: int, **_: Any) -> Figures:
    floor = await Floor.open(url)
    meter = Meter()
    await floor.fill(n)
    filled = meter.wall()
    meter = Meter()
    done = await floor.drain()
    seconds, cpu = meter.wall(), meter.cpu()
    whole = await floor.connection.fetchval(
        f"SELECT count(*) FROM {SCHEMA}.run WHERE state = 'succeeded' AND n = 3 AND epoch = 1 AND attempt = 1"
        " AND began_at IS NOT NULL AND ended_at IS NOT NULL"
    )
    events = await floor.connection.fetchval(f"SELECT count(*) FROM {SCHEMA}.event")
    if not done == whole == n or events != 3 * n:
        raise SystemExit(f"of {n} runs {done} were drained, {whole} are whole, with {events} events")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": await durability_by_asyncpg(floor.connection),
    }


async def _enqueue_one(url: str, n: int, **_: Any) -> Figures:
    floor = await Floor.open(url)
    for _number in range(100):
        await floor.insert_one()
    meter = Meter()
    for _number in range(n):
        await floor.insert_one()
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    return figures | {"durability": await durability_by_asyncpg(floor.connection)}


async def _enqueue_bulk(url: str, n: int, **_: Any) -> Figures:
    floor = await Floor.open(url)
    meter = Meter()
    await floor.fill(n)
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    return figures | {"durability": await durability_by_asyncpg(floor.connection)}


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "enqueue_one": lambda **p: asyncio.run(_enqueue_one(**p)),
            "enqueue_bulk": lambda **p: asyncio.run(_enqueue_bulk(**p)),
        }
    )
