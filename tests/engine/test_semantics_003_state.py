"""The bullets of source 003 on stored state: recovery, repair, terminal state."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import datetime
from pathlib import Path

import pytest

from mainspring import Context, Every, Mainspring
from mainspring.model.errors import UnknownSchedule
from mainspring.model.instant import instant_ms
from mainspring.testing.time_travel import travel
from tests.engine.semantics import START, Log, at, row
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored


@pytest.fixture
def ms() -> Mainspring:
    return Mainspring("memory://", lease_ttl="10m")


@pytest.fixture
def log(ms: Mainspring) -> Log:
    log = Log()
    log.on(ms)
    return log


# ── State recovery is keyed by job_id; restarting with the same job_id resumes from the stored next_run_at. ──


async def test_state_recovery_is_keyed_by_job_id_and_resumes_from_the_stored_next_run_at(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/state.db", Log()

    def app() -> Mainspring:
        ms = Mainspring(url, lease_ttl="10m")
        log.on(ms)
        return ms

    first = app()
    async with travel(first, START) as t:
        made = await first.schedule("job", "note", every="1h", max_runs=4)
        await t.advance("90m")
        next_at = (await stored(first, first.get("job"))).next_at
    assert next_at == instant_ms(at(10))
    again = app()
    async with travel(again, at(9, 45)) as t:
        same = await stored(again, again.schedule("job", "note", every="1h", max_runs=4))
        assert (same.id, same.next_at, same.fired) == (made.id, next_at, 1)  # not 09:45 + 1h
        other = await stored(again, again.schedule("other", "note", every="1h"))
        assert (other.id != made.id, other.next_at) == (True, instant_ms(at(10, 45)))
        await t.advance("6h")
        assert [run.fire_time for run in await t.runs("job")] == [instant_ms(at(hour)) for hour in (9, 10, 11, 12)]
        assert (await stored(again, again.get("job"))).reason == "max_runs"  # the count went on too
        await check_ledger(t)


# ── Corrupted persisted interval state with next_run_at = None is repaired automatically … ──


def tamper(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(sql).rowcount == 1
    db.close()


@pytest.mark.tampers
async def test_corrupted_persisted_interval_state_with_next_run_at_none_is_repaired_automatically(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "corrupt.db", Log()

    def app() -> Mainspring:
        ms = Mainspring(f"sqlite:///{path}", lease_ttl="10m")
        log.on(ms)
        return ms

    first = app()
    async with travel(first, START) as t:
        await first.schedule("s", "note", every="1h", missed="catch_up_once")
        await first.schedule("d", "note", every=Every("1h", fixed_delay=True))
        await t.advance("90m")
    tamper(path, "UPDATE schedule SET next_at = NULL WHERE name = 's'")
    tamper(path, "UPDATE schedule SET next_at = NULL WHERE name = 'd'")
    log.clear()
    again = app()
    async with travel(again, at(9, 45)) as t:
        assert (await stored(again, again.get("s"))).next_at == instant_ms(at(10))
        assert (await stored(again, again.get("d"))).next_at == instant_ms(at(10))
        await t.advance("90m")
        assert log == [at(10), at(10), at(11), at(11)]
        await check_ledger(t)


@pytest.mark.tampers
async def test_corrupted_state_is_repaired_while_the_engine_runs(tmp_path: Path) -> None:
    ms, log = Mainspring(f"sqlite:///{tmp_path}/corrupt.db", lease_ttl="10m"), Log()
    log.on(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", every="1h", missed="replay_all", overlap="queue_all")
        await t.advance("30m")
        tamper(tmp_path / "corrupt.db", "UPDATE schedule SET next_at = NULL WHERE name = 's'")
        await t.advance("4h")
        assert log == [at(9), at(10), at(11), at(12)]
        await check_ledger(t)


async def test_corrupted_state_of_a_job_that_is_actually_terminal_is_not_repaired(tmp_path: Path) -> None:
    ms, log = Mainspring(f"sqlite:///{tmp_path}/corrupt.db", lease_ttl="10m"), Log()
    log.on(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", every="1h", max_runs=1)
        await t.advance("1h")
        assert (await stored(ms, ms.get("s"))).state == "finished"
        await t.advance("3h")
        assert (log, (await stored(ms, ms.get("s"))).next_at) == ([at(9)], None)
        await check_ledger(t)


async def test_a_fixed_delay_schedule_whose_run_is_open_is_not_taken_for_corrupted(ms: Mainspring) -> None:
    ends: list[datetime] = []

    @ms.task(timeout=None)
    async def work(ctx: Context) -> None:
        await asyncio.sleep(5 * 3600)
        ends.append(ctx.fire_time)

    async with travel(ms, START) as t:
        await ms.schedule("s", work, every=Every("1h", fixed_delay=True))
        await t.advance("5h")
        assert (await stored(ms, ms.get("s"))).next_at is None
        await t.advance("2h")  # 09:00, ended 14:00, next 15:00
        assert ends == [at(9)]
        assert [run.fire_time for run in await t.runs("s")] == [instant_ms(at(9)), instant_ms(at(15))]
        await check_ledger(t)


# ── SchedulerConfig::terminal_state_policy = Delete removes persisted terminal state once the job finishes. ──


@pytest.mark.parametrize(
    "when",
    [{"every": "1h", "max_runs": 2}, {"at": [at(9), at(10)]}, {"cron": "0 * * * *", "end": at(10, 30)}],
    ids=["interval", "at_times", "cron"],
)
async def test_terminal_state_policy_delete_removes_persisted_terminal_state_once_the_job_finishes(
    ms: Mainspring, log: Log, when: dict[str, object]
) -> None:
    async with travel(ms, START) as t:
        made = await ms.schedule("s", "note", terminal="delete", **when)  # type: ignore[arg-type]
        await t.advance("90m")
        assert (await ms.get("s")).state == "active"
        await t.advance("5h")
        assert log == [at(9), at(10)]
        with pytest.raises(UnknownSchedule):
            await ms.get("s")
        assert await ms.schedules() == []
        assert (await row(t, made.id)).state == "deleted"
        assert (await check_ledger(t)).planned == 2  # the history stays
        fresh = await ms.schedule("s", "note", every="1h")  # the name is free again
        assert (fresh.id != made.id, fresh.fired) == (True, 0)


@pytest.mark.parametrize("when", [{"every": "1h", "max_runs": 0}, {"at": []}], ids=["max_runs_0", "at_times_empty"])
async def test_terminal_state_policy_delete_of_a_job_that_finishes_at_once(
    ms: Mainspring, log: Log, when: dict[str, object]
) -> None:
    async with travel(ms, START) as t:
        made = await ms.schedule("s", "note", terminal="delete", **when)  # type: ignore[arg-type]
        await t.advance("1h")
        assert (await row(t, made.id)).state == "deleted"
        assert (log, await ms.schedules()) == ([], [])
        await check_ledger(t)


async def test_terminal_state_policy_keep_is_the_default(ms: Mainspring, log: Log) -> None:
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", at=[at(9)])
        await t.advance("2h")
        assert (await ms.get("s")).state == "finished"
        await check_ledger(t)
