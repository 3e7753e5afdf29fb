"""The examples of docs/transactions.md run, on the drivers they name."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.orm import Session

from servers.for_tests import fresh_url
from tests.system.callers import django_connection, dsn, psycopg_connection, sqlalchemy_session

DOCUMENT = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)


def page(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, Any]:
    """Run the definitions of the page on a store of this test."""
    monkeypatch.setenv("MAINSPRING_URL", url)
    names: dict[str, Any] = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/transactions.md", "exec"), names)
    return names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    url = fresh_url(pool=2)
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS paid; CREATE TABLE paid (id bigint PRIMARY KEY)")
    names = page(monkeypatch, url)
    yield names
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        assert connection.execute("SELECT id FROM paid ORDER BY id").fetchall() == [(n,) for n in range(1, 6)]
        connection.execute("DROP TABLE paid")


def test_the_examples_on_postgresql(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ms, url = names["ms"], names["ms"].url

    async def awaited() -> list[str]:
        async with asyncpg.create_pool(dsn(url), min_size=1, max_size=1) as pool:
            one = await names["pay"](pool, 1)
        async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
            return [one.id, (await names["pay_async"](connection, 2)).id]

    with psycopg_connection(url) as caller:
        blocking = [names["pay_blocking"](caller.connection, 3).id]
    with sqlalchemy_session(url) as caller:
        assert isinstance(caller.connection, Session)
        blocking.append(names["pay_in_session"](caller.connection, 4).id)
    with django_connection(url) as caller:
        monkeypatch.setattr("django.db.connection", caller.connection)
        blocking.append(names["pay_in_django"](5).id)
    ids = asyncio.run(awaited()) + blocking
    ms.run(until_idle=True)
    runs = [ms.sync.find_by_id(run_id) for run_id in ids]
    assert [run.result for run in runs] == [f"invoice for {n}" for n in range(1, 6)]
    ms.sync.close()


def test_the_example_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = page(monkeypatch, f"sqlite:///{tmp_path}/shop.db")
    names["ms"].sync.schedules()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE paid (id INTEGER)")
        run = names["pay_in_a_file"](db, 6)
    names["ms"].run(until_idle=True)
    assert run.result() == "invoice for 6"
    names["ms"].sync.close()


def test_every_example_of_the_page_is_run() -> None:
    defined = set(re.findall(r"^(?:async )?def (\w+)", "\n".join(SNIPPETS), re.M))
    assert defined == {
        "invoice",
        "pay",
        "pay_blocking",
        "pay_async",
        "pay_in_session",
        "pay_in_django",
        "pay_in_a_file",
    }
