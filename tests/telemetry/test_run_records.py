"""Log lines about runs name schedule, task, run and attempt, in text and in JSON, and keep what the caller adds."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Context, Mainspring, Retry
from mainspring.engine.run_logger import RunLogger
from mainspring.model.errors import StoreUnavailable
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.clock import SystemClock
from mainspring.server.access_log import AccessLog
from mainspring.telemetry.log_format import JsonLineFormatter, TextFormatter
from mainspring.testing import travel


def record(logger: str, message: str, extra: dict[str, Any]) -> logging.LogRecord:
    return logging.getLogger(logger).makeRecord(logger, logging.INFO, "x.py", 1, message, (), None, extra=extra)


def test_text_shows_extra_fields_and_json_has_them_as_fields() -> None:
    line = record("shop", "sold", {"order": 7, "customer": "Ann Lee", "tags": ["a"], "none": None})
    assert TextFormatter("%(message)s").format(line) == 'sold [order=7 customer="Ann Lee" tags="[\'a\']"]'
    shown = json.loads(JsonLineFormatter().format(line))
    assert {name: shown[name] for name in ("message", "order", "customer", "tags")} == {
        "message": "sold",
        "order": 7,
        "customer": "Ann Lee",
        "tags": ["a"],
    }
    assert "none" not in shown


def test_fields_of_a_json_line_are_not_replaced_by_extra_ones() -> None:
    shown = json.loads(JsonLineFormatter().format(record("shop", "sold", {"level": "gold", "at": "noon"})))
    assert (shown["level"], shown["level_"], shown["at_"]) == ("info", "gold", "noon")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(Unprintable()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_any_value_of_a_field_gives_one_line(value: Any) -> None:
    line = record("shop", "sold", {"thing": value})
    assert json.loads(JsonLineFormatter().format(line))["message"] == "sold"
    assert "\n" not in TextFormatter("%(message)s").format(line).replace("\\n", "")


async def test_a_failure_names_schedule_task_run_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, initial="1s", jitter=0))
    async def work() -> None:
        raise ValueError("no paper left")

    async with travel(ms, "2026-01-01T00:00Z") as t:
        schedule = await ms.schedule("10-gone", work, every="1h", max_runs=1)
        await t.advance("1h 10s")
        (run,) = await ms.runs()
    lines = [r for r in caplog.records if "no paper left" in r.getMessage()]
    assert lines[0].getMessage() == (
        "schedule 10-gone failed (attempt 1 of 2, next in about 1.0 s): ValueError: no paper left "
        f"(task work, run {run.id}, attempt 1)"
    )
    assert lines[1].getMessage().startswith("schedule 10-gone failed (attempt 2 of 2, not retried): ValueError")
    for number, line in enumerate(lines, 1):
        shown = json.loads(JsonLineFormatter().format(line))
        fields = {name: shown[name] for name in ("schedule", "schedule_id", "task", "run_id", "attempt")}
        assert fields == {
            "schedule": "10-gone",
            "schedule_id": schedule.id,
            "task": "work",
            "run_id": run.id,
            "attempt": number,
        }
        assert "[" not in TextFormatter().format(line).partition("\n")[0], "the message has the fields already"


async def test_a_line_of_a_handler_names_its_schedule(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")
    caplog.set_level(logging.INFO)

    @ms.task
    async def work(ctx: Context) -> None:
        ctx.log("sending to %s", "acme")

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await ms.schedule("billing", work, every="1h", max_runs=1)
        await t.advance("1h 1s")
        (run,) = await ms.runs()
    (line,) = [r for r in caplog.records if r.name == "mainspring.run"]
    assert TextFormatter("%(message)s").format(line) == (
        f"sending to acme [task=work run_id={run.id} attempt=1 schedule_id={run.schedule_id} schedule=billing]"
    )
    assert json.loads(JsonLineFormatter().format(line))["schedule"] == "billing"


async def test_a_name_that_this_process_does_not_know_is_looked_up(caplog: pytest.LogCaptureFixture) -> None:
    """In an instance that did not plan the run, for example a worker; lines keep their order meanwhile."""
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z"):
        schedule = await ms.schedule("billing", work, every="1h")
        store = ms._host.store
        assert store is not None
        log = RunLogger(store, SystemClock().monotonic)
        fired = Run(id="r1", task="work", schedule_id=schedule.id, attempt=1)
        log.write(logging.WARNING, fired, "is first")
        log.write(logging.WARNING, Run(id="r2", task="work", attempt=1), "is second")
        log.write(logging.WARNING, Run(id="r3", task="work", schedule_id="unknown", attempt=1), "is third")
        await log.drain()
    assert [r.getMessage() for r in caplog.records if " is " in r.getMessage()] == [
        "schedule billing is first (task work, run r1, attempt 1)",
        "task work is second (run r2, attempt 1)",
        "schedule unknown is third (task work, run r3, attempt 1)",
    ]


async def test_a_line_is_logged_with_the_id_if_the_store_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        async def find(self, query: object) -> list[Schedule]:
            raise StoreUnavailable("away")

    store: Any = Failing()
    log = RunLogger(store, SystemClock().monotonic)
    for name in ("s1", "s2"):
        log.write(logging.ERROR, Run(id="r1", task="work", schedule_id=name, attempt=1), "failed")
    await log.drain()
    assert [r.getMessage() for r in caplog.records] == [
        "schedule s1 failed (task work, run r1, attempt 1)",
        "schedule s2 failed (task work, run r1, attempt 1)",
    ]


async def test_an_access_line_has_its_parts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404})
        await send({"type": "http.response.body", "body": b"no"})

    async def send(message: Any) -> None: ...

    caplog.set_level(logging.INFO)
    scope: Any = {"type": "http", "method": "GET", "raw_path": b"/x%20y", "state": {"address": "::1"}}
    await AccessLog(app, SystemClock().monotonic)(scope, send, send)
    (line,) = caplog.records
    assert line.getMessage().startswith("::1 - GET /x%20y 404 2B ")
    assert "[" not in TextFormatter().format(line)
    shown = json.loads(JsonLineFormatter().format(line))
    assert (shown["client"], shown["method"], shown["path"], shown["status"], shown["bytes"]) == (
        "::1",
        "GET",
        "/x%20y",
        404,
        2,
    )
    assert shown["duration_ms"] >= 0
