"""The schema of a PostgreSQL store: the first `open` creates it; any state but the newest is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from mainspring.backends.postgres import PostgresStore, migrations
from mainspring.backends.postgres.settings import read_url
from mainspring.cli.main import mainspring
from mainspring.model.errors import SchemaMismatch
from mainspring.ports.store import Runs
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from servers.for_tests import fresh_store, fresh_url

NEWEST = migrations.load_scripts()[-1].number


async def execute(url: str, *statements: str) -> Any:
    """Run statements past the store; return the rows of the last."""
    settings = read_url(url)
    connection = await asyncpg.connect(settings.dsn)
    try:
        place = migrations.schema_qualifier(settings.schema)
        return [await connection.fetch(place(statement)) for statement in statements][-1]
    finally:
        await connection.close()


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url)
    await store.open()
    return store


def cli(*words: str) -> str:
    done = CliRunner().invoke(mainspring, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def url() -> str:
    return fresh_url()


async def test_a_fresh_database_gets_its_schema_once_when_six_stores_open_it(url: str) -> None:
    stores = await asyncio.gather(*(opened(url) for _ in range(6)))
    ids = Ids()
    await stores[0].apply([enqueue_change(ids, make_run(ids))])
    assert [len(await store.find(Runs())) for store in stores] == [1] * 6
    for store in stores:
        await store.close()
    rows = await execute(url, "SELECT number FROM §migration WHERE finished_at IS NOT NULL ORDER BY number")
    assert [row["number"] for row in rows] == list(range(1, NEWEST + 1))


async def older(url: str) -> None:
    """Undo the last script."""
    await (await opened(url)).close()
    await execute(
        url,
        "ALTER TABLE §schedule DROP COLUMN rewound",
        f"DELETE FROM §migration WHERE number = {NEWEST}",
    )


async def test_an_older_schema_is_refused_with_the_command_that_upgrades_it(url: str) -> None:
    await older(url)
    with pytest.raises(SchemaMismatch) as refused:
        await PostgresStore(url).open()
    assert f"has schema {NEWEST - 1}, this Mainspring needs {NEWEST}" in str(refused.value)
    assert "Run: mainspring migrate --store postgresql://" in str(refused.value)
    command = str(refused.value).partition("Run: mainspring ")[2].split()
    assert f"step {NEWEST}: rewound" in await asyncio.to_thread(cli, *command)
    await (await opened(url)).close()
    assert "is up to date" in await asyncio.to_thread(cli, *command)


async def test_the_printed_command_does_not_contain_the_password() -> None:
    store = PostgresStore("postgresql://ann:s3cret@db.example/app?schema=mine&pool=2")
    assert store._db.shown_url == "postgresql://ann@db.example/app?schema=mine"
    store = PostgresStore("postgresql://db.example/app?user=ann&password=s3cret@x&sslmode=require&sslpassword=s3cret")
    assert store._db.shown_url == "postgresql://db.example/app?user=ann&sslmode=require"


@pytest.mark.tampers
async def test_a_newer_schema_is_refused(url: str) -> None:
    await (await opened(url)).close()
    await execute(url, f"INSERT INTO §migration (number, name, finished_at) VALUES ({NEWEST + 1}, 'later', now())")
    with pytest.raises(SchemaMismatch, match=rf"has schema {NEWEST + 1}, .* knows up to {NEWEST}. Upgrade Mainspring"):
        await PostgresStore(url).open()
    done = await asyncio.to_thread(CliRunner().invoke, mainspring, ["migrate", "--store", url])
    assert done.exit_code == 1
    assert "Upgrade Mainspring" in done.output


async def test_a_half_migrated_schema_is_refused_until_it_is_finished(url: str) -> None:
    await older(url)
    await execute(url, f"INSERT INTO §migration (number, name) VALUES ({NEWEST}, 'rewound')")
    with pytest.raises(SchemaMismatch, match=rf"half migrated: step {NEWEST} of {NEWEST} is not finished. Run: "):
        await PostgresStore(url).open()
    await asyncio.to_thread(cli, "migrate", "--store", url)
    await (await opened(url)).close()


async def test_a_script_that_fails_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = migrations.Script(NEWEST + 1, "bad", "CREATE TABLE §half (x integer); SELECT 1 / 0;")
    await (await opened(url)).close()
    scripts = migrations.load_scripts()
    monkeypatch.setattr(migrations, "load_scripts", lambda: [*scripts, bad])
    done = await asyncio.to_thread(CliRunner().invoke, mainspring, ["migrate", "--store", url])
    assert done.exit_code == 1
    assert "division by zero" in done.output
    assert (await execute(url, "SELECT to_regclass('§half') AS it"))[0]["it"] is None
    monkeypatch.undo()
    await (await opened(url)).close()


@pytest.mark.tampers
async def test_a_failed_script_outside_a_transaction_is_finished_by_the_next_migration(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(url)).close()
    scripts = migrations.load_scripts()
    index = "CREATE INDEX CONCURRENTLY IF NOT EXISTS run_later ON §run (task)"
    broken = migrations.Script(NEWEST + 1, "later", f"{migrations.OUTSIDE_TRANSACTION}\n{index};\nSELECT 1 / 0;\n")
    monkeypatch.setattr(migrations, "load_scripts", lambda: [*scripts, broken])
    done = await asyncio.to_thread(CliRunner().invoke, mainspring, ["migrate", "--store", url])
    assert done.exit_code == 1
    with pytest.raises(SchemaMismatch, match="half migrated"):
        await PostgresStore(url).open()
    mended = migrations.Script(NEWEST + 1, "later", f"{migrations.OUTSIDE_TRANSACTION}\n{index};\n")
    monkeypatch.setattr(migrations, "load_scripts", lambda: [*scripts, mended])
    assert f"step {NEWEST + 1}: later" in await asyncio.to_thread(cli, "migrate", "--store", url)
    await (await opened(url)).close()


async def test_a_schema_with_tables_of_another_program_is_refused_and_unchanged(url: str) -> None:
    schema = read_url(url).schema
    await execute(url, f"CREATE SCHEMA {schema}", "CREATE TABLE §mine (x integer)")
    with pytest.raises(SchemaMismatch, match=r"no tables of Mainspring, but 1 of another program.*\?schema="):
        await PostgresStore(url).open()
    assert len(await execute(url, "SELECT 1 FROM pg_class WHERE relname = 'mine'")) >= 1


async def test_the_printed_sql_makes_the_same_schema(url: str, tmp_path: Path) -> None:
    text = await asyncio.to_thread(cli, "migrate", "--sql", "--store", url)
    assert "CREATE TABLE" in text
    await execute(url, "SELECT 1")
    settings = read_url(url)
    connection = await asyncpg.connect(settings.dsn)
    await connection.execute(text)
    await connection.close()
    store = await opened(url)
    other = fresh_store()
    await other.open()
    assert await shape(store) == await shape(other)
    await store.close()
    await other.close()
    assert "-- nothing to do" in await asyncio.to_thread(cli, "migrate", "--sql", "--store", url)


async def shape(store: PostgresStore) -> list[Any]:
    schema = store.settings.schema
    async with store._db.read_only() as session:
        columns = await session.fetch(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = $1 "
            "ORDER BY 1, 2",
            schema,
        )
        indexes = await session.fetch(
            "SELECT replace(indexdef, $1, '') FROM pg_indexes WHERE schemaname = $1 ORDER BY 1", schema
        )
    return [*map(tuple, columns), *map(tuple, indexes)]


def test_migrate_says_when_there_is_nothing_to_migrate(tmp_path: Path) -> None:
    assert "nothing to do" in cli("migrate", "--store", f"sqlite:///{tmp_path}/x.db")
    assert "nothing to do" in cli("migrate", "--store", "redis://x")
    done = CliRunner().invoke(mainspring, ["migrate", "--store", "mongodb://x"])
    assert done.exit_code == 2
    assert "this version has no mongodb store yet" in done.output


def test_without_the_driver_the_error_names_the_install_command() -> None:
    program = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'asyncpg':\n"
        "            raise ModuleNotFoundError(\"No module named 'asyncpg'\", name='asyncpg')\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from mainspring.ports.clock import SystemClock\n"
        "from mainspring.runtime.store_url import open_store\n"
        "open_store('postgresql://x/y', SystemClock())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'mainspring[postgres]'" in done.stderr
