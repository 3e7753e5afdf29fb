"""The proof tools can fail: whatever is changed behind Mainspring's back, they say what it was."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.cli.main import mainspring
from mainspring.ledger.account import Ledger, ledger
from mainspring.ledger.verify import Report, verify
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.ids import fire_id
from mainspring.model.retention import Retention
from mainspring.model.run import Run
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import CronSpec
from mainspring.ports.store import Query, Runs, Schedules
from mainspring.rules.run_commands import Complete, Fail
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario

pytestmark = pytest.mark.tampers

MINUTE = 60_000
NOW = T0 + 30 * MINUTE
SPEC = ScheduleSpec(CronSpec("* * * * *"), "t", overlap="allow_parallel")


class Tampered:
    """A store file with a real history, a way to change it by SQL, and both tools."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sid = ""
        self.ad_hoc = ""
        self.fires: list[Run] = []
        asyncio.run(self._history())

    async def _history(self) -> None:
        store = SqliteStore(self.path)
        await store.open()
        s = Scenario(store)
        self.sid = await s.create(SPEC, T0, body='{"a": 1}')
        for minute in range(1, 6):
            await s.settle(self.sid, T0 + minute * MINUTE)
            await s.work(T0 + minute * MINUTE)
        await s.pause(self.sid, T0 + 5 * MINUTE)
        await s.resume(self.sid, T0 + 10 * MINUTE)
        await s.update(self.sid, replace(SPEC, trigger=CronSpec("*/2 * * * *")), T0 + 10 * MINUTE)
        await s.settle(self.sid, T0 + 12 * MINUTE)
        self.ad_hoc = await s.enqueue(T0 + 12 * MINUTE, body='"payload"', gates=(Gate("g", 2),))
        (run,) = await s.claim(T0 + 13 * MINUTE, ids=(self.ad_hoc,))
        await s.finish(run, Fail("boom", retry_at=T0 + 14 * MINUTE), T0 + 13 * MINUTE)
        await s.claim(T0 + 15 * MINUTE, ids=(self.ad_hoc,))
        self.fires = await s.runs(self.sid)
        await store.close()

    def sql(self, text: str, *values: object) -> None:
        with sqlite3.connect(self.path) as db:
            assert db.execute(text, values).rowcount > 0
        db.close()

    def purge(self, before: int) -> None:
        async def purge() -> None:
            store = SqliteStore(self.path)
            await store.open()
            assert (await store.purge(Retention(before), 1_000, now=NOW)).runs
            await store.close()

        asyncio.run(purge())

    def tools(self) -> tuple[Ledger, Report]:
        async def both() -> tuple[Ledger, Report]:
            store = SqliteStore(self.path)
            await store.open()
            try:
                return await ledger(store, NOW), await verify(store)
            finally:
                await store.close()

        return asyncio.run(both())

    def cli(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(mainspring, [*words, "--store", f"sqlite:///{self.path}"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    def assert_named(self, *words: str, by: str = "both") -> None:
        """Every word is in what the tool (or both) says, and the exit code is 1; the other tool may be content."""
        book, report = self.tools()
        if by in ("both", "ledger"):
            assert book.unexplained
            said = " ".join(f"{d.kind} {d.text} {d.run_id} {d.fire_time}" for d in book.differences)
            assert all(word in said for word in words), said
            code, output = self.cli("ledger")
            assert code == 1
            assert all(word in output for word in words), output
        if by in ("both", "verify"):
            assert not report.ok
            said = " ".join(f"{d.kind} {d.id} {d.what}" for d in report.differences)
            assert all(word in said for word in words), said
            code, output = self.cli("events", "verify")
            assert code == 1
            assert all(word in output for word in words), output
            assert json.loads(self.cli("events", "verify", "--json")[1])["ok"] is False


@pytest.fixture
def t(tmp_path: Path) -> Tampered:
    return Tampered(tmp_path / "proof.db")


def test_an_honest_store_is_proved(t: Tampered) -> None:
    book, report = t.tools()
    assert (book.unexplained, book.differences) == (0, [])
    assert (book.planned, book.ended, book.open, book.skipped) == (11, 5, 1, {"paused": 5})
    assert (book.ad_hoc.enqueued, book.ad_hoc.open) == (1, 1)
    assert report.ok, report.differences
    assert (report.runs, report.schedules, report.spans, report.bodies, report.gates) == (7, 1, 1, 2, 1)
    assert t.cli("ledger")[0] == 0
    assert t.cli("events", "verify")[0] == 0
    t.purge(T0 + 3 * MINUTE)
    book, report = t.tools()
    assert (book.planned, book.unexplained) == (11, 0)
    assert report.ok, report.differences


def test_a_deleted_run_row(t: Tampered) -> None:
    victim = t.fires[2]
    t.sql("DELETE FROM run WHERE id = ?", victim.id)
    t.assert_named(victim.id, "2024-01-01T00:03:00Z")


def test_a_deleted_run_row_beside_tallies(t: Tampered) -> None:
    t.purge(T0 + 3 * MINUTE)
    t.sql("DELETE FROM run WHERE id = ?", t.fires[3].id)
    t.assert_named(t.fires[3].id, "2024-01-01T00:04:00Z")


def test_a_deleted_row_of_ad_hoc_work(t: Tampered) -> None:
    t.sql("DELETE FROM run WHERE id = ?", t.ad_hoc)
    t.assert_named(t.ad_hoc)


def _copy(t: Tampered, source: str, **values: object) -> None:
    with sqlite3.connect(t.path) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info(run)") if row[1] != "rid"]
        chosen = ", ".join("?" if name in values else name for name in names)
        given = [values[name] for name in names if name in values]
        db.execute(f"INSERT INTO run ({', '.join(names)}) SELECT {chosen} FROM run WHERE id = ?", (*given, source))
    db.close()


def test_a_false_run_row(t: Tampered) -> None:
    at = T0 + 3 * MINUTE + 7_000
    false = fire_id(t.sid, str(at), at)
    _copy(t, t.fires[2].id, id=false, fire_time=at, fire_key=str(at))
    t.assert_named(false, "2024-01-01T00:03:07Z")


def test_a_false_row_and_a_deleted_one_do_not_cancel_out(t: Tampered) -> None:
    at = T0 + 11 * MINUTE
    false = fire_id(t.sid, str(at), at)
    _copy(t, t.fires[2].id, id=false, fire_time=at, fire_key=str(at), revision=2)
    t.sql("DELETE FROM run WHERE id = ?", t.fires[1].id)
    assert t.tools()[0].unexplained == 2
    t.assert_named(false, "2024-01-01T00:11:00Z", t.fires[1].id, "2024-01-01T00:02:00Z")


def test_a_false_row_of_ad_hoc_work(t: Tampered) -> None:
    false = "00000000-0000-7000-8000-00000000dead"
    _copy(t, t.ad_hoc, id=false)
    t.assert_named(false)


def test_a_false_row_of_an_unknown_schedule(t: Tampered) -> None:
    false = "00000000-0000-8000-8000-00000000dead"
    _copy(t, t.fires[0].id, id=false, schedule_id="nobody")
    t.assert_named(false)


def test_a_fire_that_lies_in_a_span_too(t: Tampered) -> None:
    at = T0 + 7 * MINUTE
    false = fire_id(t.sid, str(at), at)
    _copy(t, t.fires[2].id, id=false, fire_time=at, fire_key=str(at))
    t.assert_named(false, "2024-01-01T00:07:00Z")


@pytest.mark.parametrize(
    ("column", "value"),
    [("task", "other"), ("result", '"forged"'), ("state", "failed"), ("attempt", 9), ("ended_at", 5), ("priority", 0)],
)
def test_a_changed_column_of_a_run(t: Tampered, column: str, value: object) -> None:
    t.sql(f"UPDATE run SET {column} = ? WHERE id = ?", value, t.fires[0].id)
    t.assert_named(t.fires[0].id, f"{column} is {value!r} in the row", by="verify")


def test_an_operational_column_may_differ(t: Tampered) -> None:
    t.sql("UPDATE run SET lease_until = lease_until + 1, progress = 'half' WHERE id = ?", t.ad_hoc)
    assert t.tools()[1].ok


@pytest.mark.parametrize(("column", "value"), [("name", "renamed"), ("fired", 77), ("next_at", 5), ("anchor", 5)])
def test_a_changed_column_of_a_schedule(t: Tampered, column: str, value: object) -> None:
    t.sql(f"UPDATE schedule SET {column} = ?", value)
    t.assert_named(t.sid, f"{column} is {value!r} in the row", by="verify")


def test_a_moved_cursor(t: Tampered) -> None:
    t.sql("UPDATE schedule SET cursor = cursor + 120000")
    t.assert_named("2024-01-01T00:14:00Z", by="ledger")
    t.assert_named(t.sid, "cursor is", by="verify")


def test_a_row_that_cannot_be_read(t: Tampered) -> None:
    t.sql("UPDATE run SET state = 'bogus' WHERE id = ?", t.fires[0].id)
    code, output = t.cli("events", "verify")
    assert code == 1
    assert f"run {t.fires[0].id}  the row cannot be read" in output
    assert t.cli("ledger")[0] == 1


async def test_an_outage_while_rows_are_read_one_by_one_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is not reported as rows that cannot be read."""
    store = MemoryStore()
    s = Scenario(store)
    await s.create(SPEC, T0)
    await s.enqueue(T0)
    find = store.find
    for kind in (Runs, Schedules):

        async def fail(query: Query[Any], kind: type = kind) -> list[Any]:
            if not isinstance(query, kind):
                return await find(query)
            raise StoreUnavailable("the server is away") if query.id else StoreError("a bad page")

        with monkeypatch.context() as patch:
            patch.setattr(store, "find", fail)
            with pytest.raises(StoreUnavailable, match="the server is away"):
                await verify(store)
    assert (await verify(store)).ok


@pytest.mark.parametrize("away", [1, 65])
async def test_an_outage_while_bad_events_are_skipped_is_raised(monkeypatch: pytest.MonkeyPatch, away: int) -> None:
    """An outage is not reported as events that cannot be read.

    Behind 64 bad events the search for a good one takes larger steps, and then looks back between two of them.
    """
    store = MemoryStore()
    await Scenario(store).create(SPEC, T0)
    tail = store.tail

    async def fail(after: int, limit: int) -> list[Event]:
        if after == away:
            raise StoreUnavailable("the server is away")
        if limit > 1 or after < 66:
            raise StoreError("a bad event")
        return await tail(after, limit)

    with monkeypatch.context() as patch:
        patch.setattr(store, "tail", fail)
        with pytest.raises(StoreUnavailable, match="the server is away"):
            await verify(store)
    assert (await verify(store)).ok


def test_a_deleted_event_in_the_middle(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'RunStarted' AND rid = (SELECT rid FROM run WHERE id = ?)", t.fires[1].id)
    t.assert_named(t.fires[1].id, "number 2 is missing", by="verify")


def test_a_deleted_event_at_the_end(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'RunSucceeded' AND rid = (SELECT rid FROM run WHERE id = ?)", t.fires[1].id)
    t.assert_named(t.fires[1].id, "the row is at number 3, the log ends at 2", by="verify")


def test_a_deleted_birth(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'RunScheduled' AND rid = (SELECT rid FROM run WHERE id = ?)", t.fires[1].id)
    t.assert_named(t.fires[1].id, "number 1 is missing", "fired is 6 in the row, 5 by the log", by="verify")


def test_a_deleted_birth_of_ad_hoc_work(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'RunScheduled' AND rid = (SELECT rid FROM run WHERE id = ?)", t.ad_hoc)
    t.assert_named(t.ad_hoc)


def test_a_deleted_event_of_a_schedule(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'SchedulePaused'")
    t.assert_named(t.sid, "number 2 is missing", by="verify")


def test_a_deleted_definition(t: Tampered) -> None:
    t.sql("DELETE FROM event WHERE type = 'ScheduleUpdated'")
    t.assert_named("revision 2", by="ledger")
    t.assert_named(t.sid, "number 5", by="verify")


def test_a_swapped_order_of_events(t: Tampered) -> None:
    rid = "(SELECT rid FROM run WHERE id = ?)"
    t.sql(f"UPDATE event SET n = -1 WHERE n = 2 AND rid = {rid}", t.fires[1].id)
    t.sql(f"UPDATE event SET n = 2 WHERE n = 3 AND rid = {rid}", t.fires[1].id)
    t.sql(f"UPDATE event SET n = 3 WHERE n = -1 AND rid = {rid}", t.fires[1].id)
    t.assert_named(t.fires[1].id, "twice", by="verify")


def test_an_illegal_move(t: Tampered) -> None:
    t.sql(
        "UPDATE event SET type = 'RunUnblocked', data = '{\"ready_at\": 1}' "
        "WHERE n = 2 AND rid = (SELECT rid FROM run WHERE id = ?)",
        t.fires[1].id,
    )
    t.assert_named(t.fires[1].id, "event RunUnblocked cannot follow", by="verify")


def test_an_event_of_an_unknown_type(t: Tampered) -> None:
    t.sql("UPDATE event SET type = 'RunTeleported' WHERE seq = 4")
    t.assert_named("event 4 cannot be read", "RunTeleported", by="verify")


def test_an_event_with_broken_data(t: Tampered) -> None:
    t.sql("UPDATE event SET data = '{' WHERE seq = 4")
    t.assert_named("event 4 cannot be read", by="verify")


@pytest.mark.parametrize("table", ["schedule", "run"])
def test_a_swapped_revision(t: Tampered, table: str) -> None:
    if table == "schedule":
        t.sql("UPDATE schedule SET revision = 1")
        t.assert_named("revision 1", "2", by="ledger")
        t.assert_named(t.sid, "revision is 1 in the row, 2 by the log", by="verify")
    else:
        t.sql("UPDATE run SET revision = 2 WHERE id = ?", t.fires[0].id)
        t.assert_named(t.fires[0].id, "2024-01-01T00:01:00Z", "says revision 2, in force was 1", by="ledger")
        t.assert_named(t.fires[0].id, "revision is 2 in the row, 1 by the log", by="verify")


def test_a_deleted_schedule_row(t: Tampered) -> None:
    t.sql("DELETE FROM schedule")
    t.assert_named("nightly")


def test_a_deleted_span(t: Tampered) -> None:
    t.sql("DELETE FROM span")
    t.assert_named("2024-01-01T00:06:00Z", "2024-01-01T00:10:00Z", by="ledger")
    t.assert_named(t.sid, "span paused of 5", "has no row", by="verify")


def test_a_changed_span(t: Tampered) -> None:
    t.sql("UPDATE span SET count = 4")
    t.assert_named("says 4 fires, its definition has 5", by="ledger")
    t.assert_named(t.sid, "span paused of 4", "has no event", by="verify")


def test_a_changed_payload(t: Tampered) -> None:
    t.sql("UPDATE body SET data = '\"other\"' WHERE data = '\"payload\"'")
    t.assert_named(t.ad_hoc, "is not the one it was", by="verify")


def test_a_deleted_payload(t: Tampered) -> None:
    t.sql("DELETE FROM body WHERE data = '\"payload\"'")
    t.assert_named(t.ad_hoc, "does not exist", by="verify")


def test_a_wrong_gate(t: Tampered) -> None:
    t.sql("INSERT OR REPLACE INTO gate_held (name, held) VALUES ('g', 2)")
    t.assert_named("gate g", "held is 2 in the row, 1 running", by="verify")


def test_a_forged_tally(t: Tampered) -> None:
    t.sql("INSERT INTO tally VALUES (?, ?, 'fire/succeeded', 3)", t.sid, T0 // 86_400_000)
    t.assert_named("tall", "3 more", by="ledger")
    t.assert_named("tally", "never compacted", by="verify")


def test_the_command_completes_a_history_after_all(t: Tampered) -> None:
    """The tools only look: the history goes on as before."""
    before = t.path.read_bytes()
    t.cli("ledger")
    t.cli("events", "verify")

    async def go_on() -> None:
        store = SqliteStore(t.path)
        await store.open()
        s = Scenario(store)
        for run in await s.claim(T0 + 16 * MINUTE):
            await s.finish(run, Complete(T0 + 16 * MINUTE, 1), T0 + 16 * MINUTE)
        await store.close()

    asyncio.run(go_on())
    assert before
    assert t.cli("ledger")[0] == 0
    assert t.cli("events", "verify")[0] == 0
