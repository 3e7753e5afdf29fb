"""`mainspring workers`: every column whole in a pipe, and stopped instances told from dead ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.cli.main import mainspring
from mainspring.engine.presence import INSTANCE_PREFIX
from mainspring.runtime.runtime import Runtime


def cli(*words: str) -> str:
    done = CliRunner().invoke(mainspring, words, env={"MAINSPRING_URL": None, "COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def app(tmp_path: Path) -> Mainspring:
    labels = {"zone": "europe-west-1", "pool": "production-schedulers-of-the-night"}
    return Mainspring(f"sqlite:///{tmp_path / 'ms.db'}", name="a-program-with-a-long-name", labels=labels)


async def _killed(runtime: Runtime) -> None:
    """Leave a presence row as a process does that is killed: its lease ends, and it has said nothing."""
    name = INSTANCE_PREFIX + "gone:1:abcdef"
    lease = await runtime.store.lease(name, "gone:1:abcdef", 60_000, data='{"app":"gone","pid":1,"host":"gone"}')
    assert lease is not None
    await runtime.store.release(name, "gone:1:abcdef", lease.epoch)


async def test_states_of_instances(app: Mainspring) -> None:
    async with app.running():
        live = json.loads(await asyncio.to_thread(cli, "workers", "--json", "--store", app.url))
        await host_of(app).call(_killed)
    told = {
        one["app"]: one["state"]
        for one in json.loads(await asyncio.to_thread(cli, "workers", "--json", "--store", app.url))
    }
    assert [one["state"] for one in live] == ["live"]
    assert told == {app.settings.app: "stopped", "gone": "dead"}


async def test_no_column_is_cut_in_a_pipe(app: Mainspring) -> None:
    async with app.running():
        text = await asyncio.to_thread(cli, "workers", "--store", app.url)
    assert "…" not in text
    assert "pool=production-schedulers-of-the-night, zone=europe-west-1" in text
    assert "a-program-with-a-long-name" in text
    assert text.split()[:3] == ["state", "last", "seen"]
