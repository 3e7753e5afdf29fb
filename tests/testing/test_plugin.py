"""The `mainspring` fixture in plain and async tests and beside other plugins; tests without it pay nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mainspring
from tests.testing.trial import Run

pytest_plugins = ["pytester"]

PLAIN = """
    def test_nothing_happens_before_the_test_says_so(mainspring):
        handle = send.sync.enqueue("acme")
        assert seen == []
        mainspring.run_due()
        assert seen == [("send", "acme", 1), ("follow", "acme")]
        assert handle.result() == 1

    def test_time_passes_and_schedules_fire(mainspring):
        mainspring.advance("6h")
        assert seen == ["nightly"]
        assert mainspring.now.isoformat() == "2026-03-29T04:00:00+00:00"
        assert [run.to_dict()["fire_time"] for run in mainspring.runs(nightly)] == ["2026-03-29T01:00:00Z"]

    def test_a_blocking_handler_runs_in_this_thread_and_sees_no_loop(mainspring):
        where = []
        @ms.task
        def look() -> None:
            where.append(threading.get_ident())
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
        look.sync.enqueue()
        mainspring.run_due()
        assert where == [threading.get_ident()]

    def test_tasks_registered_by_a_test_are_gone_in_the_next(mainspring):
        assert "look" not in ms.tasks
        assert mainspring.runs() == []

    def test_waiting_for_a_result_lets_time_pass(mainspring):
        assert send.using(delay="2h").sync.enqueue("acme", copies=3).result() == 3
        assert mainspring.now.hour == 0

    def test_a_failure_and_its_retry(mainspring):
        mainspring.fail_next(send, ConnectionError("refused"), times=2)
        send.sync.enqueue("acme")
        mainspring.run_due()
        (run,) = mainspring.runs(send)
        assert (run.state, run.failures, run.error) == ("retrying", 1, "ConnectionError: refused")
        mainspring.advance("10s")
        assert mainspring.runs(send)[0].failures == 2
        assert seen == []
        mainspring.drain()
        assert mainspring.runs(send)[0].state == "succeeded"
        assert seen == [("send", "acme", 1), ("follow", "acme")]

    def test_a_fresh_app_of_its_own(mainspring):
        assert mainspring.app is ms

    def test_dependencies_of_blocking_handlers(mainspring):
        async def pool():
            yield "open"
        @ms.task
        def use(pool: str = Depends(pool)) -> str:
            return pool
        assert use.sync.enqueue().result() == "open"

    def test_drain_reports_a_run_that_snoozes_for_ever(mainspring):
        @ms.task
        async def later() -> Snooze:
            return Snooze("1h")
        later.sync.enqueue()
        with pytest.raises(AssertionError, match=r"open runs after 86400 s .* later is waiting"):
            mainspring.drain()

    def test_many_at_once(mainspring):
        send.sync.enqueue_many([("acme",), ("globex", 3)])
        mainspring.assert_enqueued(send, count=2)
        mainspring.run_due()
        assert [entry[1:] for entry in seen if entry[0] == "send"] == [("acme", 1), ("globex", 3)]

    def test_every_call_of_the_app_works(mainspring):
        ms.sync.schedule("hourly", send, cron="0 * * * *", args=("globex",))
        ms.sync.pause("nightly")
        ms.sync.trigger("hourly")
        mainspring.advance("2h")
        assert [entry for entry in seen if entry[0] == "send"] == [("send", "globex", 1)] * 3
        mainspring.assert_fires("nightly", [])
"""

ASYNC = """
    @pytest.mark.asyncio
    async def test_awaited(mainspring):
        handle = await send.enqueue("acme")
        mainspring.assert_enqueued(send)
        assert seen == []
        await mainspring.run_due()
        assert seen == [("send", "acme", 1), ("follow", "acme")]
        assert await handle.result() == 1

    @pytest.mark.asyncio
    async def test_time(mainspring):
        await mainspring.advance("6h")
        assert seen == ["nightly"]
        handles = await asyncio.gather(*(send.using(delay="1h").enqueue("acme", n) for n in (1, 2)))
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [1, 2]
        await mainspring.drain()

    @pytest.mark.asyncio
    async def test_handlers_on_the_loop_of_the_test(mainspring):
        ready = asyncio.Event()
        @ms.task
        async def wait() -> None:
            await ready.wait()
            await asyncio.to_thread(seen.append, "waited")
        await wait.enqueue()
        await mainspring.run_due()
        assert seen == []
        ready.set()
        await mainspring.run_due()
        assert seen == ["waited"]

    @pytest.fixture
    def prepared(mainspring):
        send.sync.enqueue("from a plain fixture")
        yield
        mainspring.run_due()
        mainspring.assert_enqueued(send, count=2)

    @pytest.mark.asyncio
    async def test_a_plain_fixture_may_use_it_first_and_last(prepared, mainspring):
        await send.enqueue("from the test")
        await mainspring.drain()
        assert [entry[1] for entry in seen if entry[0] == "send"] == ["from a plain fixture", "from the test"]

    @pytest.mark.asyncio
    async def test_ends_while_a_handler_runs(mainspring):
        @ms.task
        async def sleep() -> None:
            await asyncio.sleep(100)
        await sleep.enqueue()
        await mainspring.advance("1s")
        assert mainspring.runs(sleep)[0].state == "running"

    def test_a_plain_test_with_a_loop_of_its_own(mainspring):
        send.sync.enqueue("before")
        async def main():
            await send.enqueue("inside")
            await mainspring.drain()
        asyncio.run(main())
        assert [run.state for run in mainspring.runs()] == ["succeeded"] * 4
        assert send.sync.enqueue("after").result() == 1
"""


def test_plain_tests(tested: Run) -> None:
    tested(PLAIN).assert_outcomes(passed=11)


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_async_tests_under_pytest_asyncio(tested: Run, mode: str) -> None:
    tested(ASYNC, f"--asyncio-mode={mode}").assert_outcomes(passed=6)


def test_async_tests_under_anyio(tested: Run) -> None:
    tests = ASYNC.replace("pytest.mark.asyncio", "pytest.mark.anyio")
    backend = "\n    @pytest.fixture\n    def anyio_backend():\n        return 'asyncio'\n"
    tested(backend + tests, "-pno:asyncio").assert_outcomes(passed=6)


def test_under_xdist(tested: Run) -> None:
    tested(PLAIN + ASYNC, "-n1", "--asyncio-mode=strict", inprocess=False).assert_outcomes(passed=17)


def test_a_web_app_that_starts_it_in_its_lifespan(tested: Run) -> None:
    tests = """
    from contextlib import asynccontextmanager

    def test_requests_from_another_thread_and_loop(mainspring):
        done = []
        def serve():  # what a test client does: the web app has a thread and a loop of its own
            async def main():
                async with ms.lifespan()(None):
                    handle = await send.enqueue("acme")
                    done.append(handle.id)
                    await follow.enqueue_many([("bulk",)])
                    done.append(await handle.result())
            asyncio.run(main())
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        mainspring.assert_enqueued(send, args=("acme",))
        mainspring.run_due()
        assert sorted(seen) == [("follow", "acme"), ("follow", "bulk"), ("send", "acme", 1)]
        assert done[1] == 1
    """
    tested(tests).assert_outcomes(passed=1)


def test_an_async_step_that_is_not_awaited_is_reported(tested: Run) -> None:
    tests = """
    @pytest.mark.asyncio
    async def test_forgotten(mainspring):
        mainspring.advance("1h")

    @pytest.mark.asyncio
    async def test_forgotten_before_a_question(mainspring):
        mainspring.run_due()
        mainspring.assert_not_enqueued(send)
    """
    result = tested(tests)
    result.assert_outcomes(passed=1, errors=1, failed=1)
    result.stdout.fnmatch_lines(["*write await mainspring.advance('1h') in an async test*"])
    result.stdout.fnmatch_lines(["*write await mainspring.run_due() in an async test*"])


def test_a_handler_cannot_move_its_own_time(tested: Run) -> None:
    tests = """
    @pytest.mark.parametrize("plain", [True, False])
    def test_it(mainspring, plain):
        if plain:
            @ms.task(retry=Retry(max_attempts=1))
            def turn() -> None:
                mainspring.advance("1h")
        else:
            @ms.task(retry=Retry(max_attempts=1))
            async def turn() -> None:
                await mainspring.advance("1h")
        turn.sync.enqueue()
        mainspring.run_due()
        (run,) = mainspring.runs(turn)
        assert run.state == "failed"
        assert "a handler cannot move the clock of its test" in run.error

    def test_a_blocking_handler_cannot_wait_for_another(mainspring):
        @ms.task(retry=Retry(max_attempts=1))
        def wait() -> str:
            return follow.sync.enqueue("x").result()
        wait.sync.enqueue()
        mainspring.run_due()
        assert "a blocking handler cannot wait for another run in a test" in mainspring.runs(wait)[0].error
    """
    tested(tests).assert_outcomes(passed=3)


def test_an_app_is_restored_as_it_was(tested: Run) -> None:
    tests = """
    from mainspring import RunSucceeded
    from mainspring.app.internals import host_of
    from mainspring.testing import Kit

    class TestBack:
        def test_back(self):
            app = Mainspring("memory://", lease_ttl="5s")
            @app.task
            async def one() -> int:
                return 1
            before = (app.clock, app.settings, host_of(app).engine, host_of(app).store, dict(app.tasks))
            with Kit("2026-01-01T00:00Z") as kit:
                kit.use(app)
                app.on_event(RunSucceeded, seen.append)
                handle = one.sync.enqueue()
                kit.run_due()
                assert len(seen) == 1
            assert (app.clock, app.settings, host_of(app).engine, host_of(app).store, dict(app.tasks)) == before
            async def main():
                async with app.running():
                    assert await (await one.enqueue()).result(timeout="20s") == 1
                    assert len(await app.runs()) == 1
            asyncio.run(main())
            assert len(seen) == 1
    """
    tested(tests).assert_outcomes(passed=1)


def test_a_fresh_app(tested: Run) -> None:
    tests = """
    def test_fresh(mainspring):
        @mainspring.app.every("15m")
        async def tick():
            return 1
        mainspring.advance("1h")
        assert len(mainspring.runs("tick")) == 4

        @mainspring.app.every("1h", name="late")
        async def declared_later():
            return 1
        mainspring.advance("1h")
        assert len(mainspring.runs("declared_later")) == 1
    """
    tested(tests, shop=False).assert_outcomes(passed=1)


def test_tests_without_the_fixture_import_nothing_of_mainspring(tested: Run) -> None:
    tests = """
    import sys

    def test_it():
        assert [name for name in sys.modules if name.startswith("mainspring.")] == ["mainspring.pytest_plugin"]
    """
    result = tested(tests, "-pno:asyncio", "-pno:anyio", shop=False, inprocess=False)
    result.assert_outcomes(passed=1)


def test_pytest_does_not_warn_if_mainspring_was_imported_before_it() -> None:
    """pytest marks an installed package with a plugin for assert rewriting, unless its docstring has a special word."""
    assert "PYTEST_DONT_REWRITE" in (mainspring.__doc__ or "")


def test_mainspring_needs_no_pytest() -> None:
    code = "import sys, mainspring.testing, mainspring.app.mainspring; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
