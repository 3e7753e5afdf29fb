"""The blocking interface `.sync`: plain threads, forks, the thread of a running loop, and examples for frameworks."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from mainspring import Mainspring, Retry, RunHandle, RunNotSuccessful, State
from mainspring.app.internals import host_of
from mainspring.model.errors import SyncOnLoop, WrongArguments

ROOT = Path(__file__).parents[2]
WAIT = "20s"


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Mainspring]:
    app = Mainspring(f"sqlite:///{tmp_path}/x.db")

    @app.task(retry=Retry(max_attempts=1))
    def send(customer: str, copies: int = 1) -> str:
        if customer == "nobody":
            raise LookupError("nobody")
        return customer * copies

    yield app
    app.sync.close()


def test_public_methods_have_blocking_twins_of_the_same_name(ms: Mainspring) -> None:
    send = ms.tasks["send"]
    handle = send.sync.enqueue("acme", copies=2)
    assert (handle.state(), handle.created) == (State.WAITING, True)
    many = send.sync.enqueue_many([("a",), {"customer": "b", "copies": 3}])
    bad = send.using(priority="high").sync.enqueue("nobody")
    ms.sync.schedule("nightly", send, cron="0 2 * * *", args=("globex",))
    triggered = ms.sync.trigger("nightly")
    cancelled = send.using(delay="1h").sync.enqueue("later")
    ms.run(until_idle=True)
    assert handle.result(timeout=WAIT) == "acmeacme"
    assert [one.result(timeout=WAIT) for one in many] == ["a", "bbb"]
    assert triggered.result(timeout=WAIT) == "globex"
    with pytest.raises(RunNotSuccessful, match="LookupError: nobody"):
        bad.result(timeout=WAIT)
    assert ms.sync.cancel(cancelled.id, reason="no").state is State.CANCELLED
    assert ms.sync.pause("nightly").state == "paused"
    assert [s.name for s in ms.sync.schedules(enabled=False)] == ["nightly"]
    assert ms.sync.resume("nightly").state == "active"
    assert ms.sync.update("nightly", grace="5m").revision == 2
    ms.sync.delete("nightly")
    assert ms.sync.schedules() == []
    assert ms.sync.find_by_id(handle.id).state is State.SUCCEEDED
    assert handle.run().id == handle.id
    assert ms.sync.retry(bad.id).state is State.WAITING
    assert ms.sync.events(run=handle.id)
    with pytest.raises(WrongArguments):
        send.sync.enqueue()


def test_methods_that_are_no_coroutines_have_no_sync_twin(ms: Mainspring) -> None:
    with pytest.raises(AttributeError, match=r"Mainspring\.sync has no 'on_event': call ms\.on_event itself"):
        _ = ms.sync.on_event
    with pytest.raises(AttributeError):
        _ = ms.sync.no_such_verb


def test_from_plain_threads(ms: Mainspring) -> None:
    send = ms.tasks["send"]
    ids: list[str] = []
    start = threading.Barrier(8)

    def produce(number: int) -> None:
        start.wait(20)  # all open the store at once
        ids.extend(send.sync.enqueue(f"{number}-{n}").id for n in range(5))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 40
    assert {run.id for run in ms.sync.runs(limit=100)} == set(ids)


async def test_on_a_loops_own_thread_it_raises_and_names_the_right_call(ms: Mainspring) -> None:
    send = ms.tasks["send"]
    with pytest.raises(SyncOnLoop, match=r"this thread runs an event loop.*write: await send\.enqueue\(…\)"):
        send.sync.enqueue("acme")
    with pytest.raises(SyncOnLoop, match=r"await send\.enqueue_many\(…\)"):
        send.sync.enqueue_many([("acme",)])
    with pytest.raises(SyncOnLoop, match=r"await ms\.pause\(…\)"):
        ms.sync.pause("nightly")
    assert await ms.runs() == []
    # from a thread beside the loop it works
    handle = await asyncio.to_thread(send.sync.enqueue, "acme")
    with pytest.raises(SyncOnLoop, match=r"await handle\.result\(\)"):
        handle.result()
    assert await asyncio.to_thread(handle.state) is State.WAITING


FORKING = """
    import os, sys
    from mainspring import Mainspring

    ms = Mainspring("sqlite:///{db}")

    @ms.task
    def send(n: int) -> int:
        return n

    before = sys.argv[1] == "used before"
    if before:
        send.sync.enqueue(0)
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                for n in range(10):
                    send.sync.enqueue(100 * (child + 1) + n)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    for n in range(10):
        send.sync.enqueue(n + 1)
    print([os.waitpid(pid, 0)[1] for pid in children], flush=True)
    ms.run(until_idle=True)
    done = ms.sync.runs(state="succeeded", limit=1000)
    print(len(done), len({{run.id for run in done}}), flush=True)
"""


@pytest.mark.parametrize("how", ["used before", "fresh"])
def test_after_a_fork_parent_and_children_enqueue(tmp_path: Path, how: str) -> None:
    path = tmp_path / "forking.py"
    path.write_text(textwrap.dedent(FORKING).format(db=tmp_path / "x.db"))
    done = subprocess.run([sys.executable, str(path), how], capture_output=True, text=True, timeout=50)
    count = 41 if how == "used before" else 40
    assert done.stdout.splitlines() == ["[0, 0, 0]", f"{count} {count}"], done.stdout + done.stderr


OUTLIVING = """
    import os
    from mainspring import Mainspring

    ms = Mainspring("sqlite:///{db}")

    @ms.task
    def send(n: int) -> int:
        return n

    send.sync.enqueue(0)
    ready, wake_ready = os.pipe()
    go, wake_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        send.sync.enqueue(1)
        os.write(wake_ready, b"x")
        os.read(go, 1)
        for n in range(2, 12):
            send.sync.enqueue(n)
        os._exit(0)
    os.read(ready, 1)
    ms.sync.close()                       # the parent lets go while the child still writes
    os.write(wake_go, b"x")
    os.waitpid(pid, 0)
    print(len(ms.sync.runs(limit=100)), flush=True)
"""


def test_a_child_that_outlives_its_parents_connection_loses_nothing(tmp_path: Path) -> None:
    # SQLite counts its file locks in memory, which fork copies: an open file that crossed a fork would leave the child
    # without a lock of its own, and the parent's close would remove the log into which the child writes.
    path = tmp_path / "outliving.py"
    path.write_text(textwrap.dedent(OUTLIVING).format(db=tmp_path / "x.db"))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "12", done.stdout + done.stderr


def test_siblings_of_one_fork_make_different_ids(tmp_path: Path) -> None:
    code = """
        import os
        from mainspring import Mainspring

        from mainspring.app.internals import host_of

        ids = host_of(Mainspring("memory://")).ids
        ids.new(0)
        read, write = os.pipe()
        for _ in range(3):
            if os.fork() == 0:
                os.write(write, (ids.new(0) + "\\n").encode())
                os._exit(0)
        for _ in range(3):
            os.wait()
        print(len({ids.new(0), *os.read(read, 1000).decode().split()}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "4", done.stderr


# ── the examples ───────────────────────────────────────────────────────────


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import the module of an example, on a store of this test."""
    name = f"examples.{request.param}"
    monkeypatch.setenv("MAINSPRING_URL", f"sqlite:///{tmp_path}/x.db")
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop(name, None)
    module: ModuleType = importlib.import_module(name)
    yield module
    module.ms.sync.close()
    sys.modules.pop(name, None)


@pytest.mark.parametrize("example", ["flask_app"], indirect=True)
def test_flask(example: Any) -> None:
    with example.app.test_client() as client:
        first = client.post("/invoices/acme?copies=2")
        again = client.post("/invoices/acme")
        assert (first.status_code, first.json["created"]) == (202, True)
        assert (again.json["id"], again.json["created"]) == (first.json["id"], False)
        example.ms.run(until_idle=True)
        answer = client.get(f"/runs/{first.json['id']}")
        assert (answer.json["state"], answer.json["result"]) == ("succeeded", "2 for acme")


@pytest.mark.parametrize("example", ["django_app"], indirect=True)
def test_django(example: Any) -> None:
    from django.test import AsyncClient, Client

    answer = Client().post("/invoices/acme?copies=3")
    assert answer.status_code == 202
    other = asyncio.run(AsyncClient().post("/async/invoices/globex"))
    example.ms.run(until_idle=True)
    results = [example.ms.sync.find_by_id(a.json()["id"]).result for a in (answer, other)]
    assert results == ["3 for acme", "1 for globex"]


@pytest.mark.parametrize("example", ["fastapi_app"], indirect=True)
async def test_fastapi(example: Any) -> None:
    app = example.app
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        answer = await client.post("/invoices/acme?copies=2")
        assert answer.status_code == 202
        run_id = answer.json()["id"]
        assert await RunHandle[str](run_id, host_of(example.ms), str).result(timeout=WAIT)
        read = (await client.get(f"/runs/{run_id}")).json()
        assert (read["id"], read["state"], read["result"]) == (run_id, "succeeded", "2 for acme")
        assert [s.name for s in await example.ms.schedules()] == ["morning_report"]
