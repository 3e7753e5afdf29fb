"""Right uses: `mypy --strict` has nothing to say. `bad.py` is its counterpart; neither is ever run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from mainspring import (
    Blocked,
    Context,
    Depends,
    Ended,
    Http,
    HttpAgent,
    Mainspring,
    Priority,
    Retry,
    Retrying,
    Run,
    RunHandle,
    Running,
    Schedule,
    State,
    Waiting,
    Window,
)
from mainspring.compat import handlers, jobs, scheduler
from mainspring.model.events import Event, RunFailed, RunRetrying, RunSucceeded
from mainspring.model.run import Run as StoredRun
from mainspring.rules.run_commands import Complete, Fail

ms = Mainspring("memory://")


async def get_pool() -> AsyncIterator[list[str]]:
    yield ["connection"]


@ms.task
async def bare(customer: str, copies: int = 1) -> float:
    return 1.5 * copies


@ms.task(retry=Retry(max_attempts=5), timeout="30s", priority="high", executor="auto")
def with_options(customer: str, *, copies: int = 1) -> dict[str, int]:
    return {customer: copies}


@ms.task
async def with_context(ctx: Context, customer: str) -> str:
    ctx.progress(0.5, "half way")
    ctx.log("at %s", ctx.fire_time)
    return f"{ctx.run_id} {ctx.attempt} {ctx.tz} {ctx.idempotency_key} {customer}"


@ms.task(executor="thread")
def with_context_in_thread(ctx: Context, n: int) -> bool:
    return ctx.cancelled


@ms.task
async def with_dependency(customer: str, pool: list[str] = Depends(get_pool)) -> int:  # noqa: B008
    return len(pool)


@ms.cron("0 9 * * Mon-Fri", tz="Europe/Berlin", missed="catch_up_once", overlap="forbid")
async def morning(ctx: Context) -> None: ...


@ms.every("10m", window=Window("09:00-17:00"), on_exhausted="pause")
def often() -> None: ...


@ms.at(datetime(2026, 3, 2, tzinfo=UTC), args=("acme",))
def once(customer: str) -> None: ...


async def enqueueing() -> None:
    handle: RunHandle[float] = await bare.enqueue("acme", copies=2)
    number: float = await handle.result(timeout="10s")
    counts: dict[str, int] = await (await with_options.enqueue("acme", copies=3)).result()
    text: str = await (await with_context.enqueue("acme")).result(timedelta(seconds=1))
    truth: bool = await (await with_context_in_thread.enqueue(3)).result(10)
    length: int = await (await with_dependency.enqueue("acme")).result()
    nothing = await morning.enqueue()
    state: State = await nothing.state()
    await bare.using(priority="critical", delay="10m", unique="acme").enqueue("acme")
    await bare.using(priority=Priority.LOW, at=datetime.now(UTC), recovery="fail").enqueue("acme", 2)
    many: list[RunHandle[float]] = await bare.enqueue_many([("acme",), {"customer": "globex", "copies": 3}])
    print(number, counts, text, truth, length, state, many)


async def joining(conn: object) -> None:
    handle: RunHandle[float] = await bare.enqueue("acme", copies=2, connection=conn)
    await bare.using(connection=conn, unique="acme").enqueue("acme")
    await bare.enqueue_many([("acme",)], connection=conn)
    number: float = await handle.result()
    text: str = with_context.sync.enqueue("acme", connection=conn).result()
    with_context.sync.enqueue_many([("acme",)], connection=conn)
    print(number, text)


def blocking() -> float:
    result: float = bare.sync.enqueue("acme", copies=2).result(timeout="1s")
    with_context.sync.enqueue("acme")
    bare.using(delay="1s").sync.enqueue("acme")
    return result


def blocking_management() -> None:
    schedule: Schedule = ms.sync.schedule("nightly", bare, cron="0 2 * * *", args=("acme",), missed="skip")
    ms.sync.pause("nightly", reason="migration", until=datetime.now(UTC))
    ms.sync.update("nightly", grace="10m", overlap="queue_one")
    runs: list[Run] = ms.sync.runs(schedule="nightly", state=["failed", State.WAITING])
    state: State = ms.sync.trigger("nightly").state()
    with ms.sync.lock("import", ttl="30s", wait=False) as guard:
        guard.check()
    ms.sync.close()
    print(schedule.next_run, schedule.last_run, runs[0].result, state, guard.token)


async def managing() -> None:
    schedule: Schedule = await ms.schedule("nightly", bare, cron="0 2 * * *", args=("acme",), missed="skip")
    await ms.schedule("often", with_context, every="10m", kwargs={"customer": "acme"}, on_conflict="replace")
    await ms.update("nightly", grace="10m", overlap="queue_one")
    await ms.pause("nightly", reason="migration", until=datetime.now(UTC))
    runs: list[Run] = await ms.runs(schedule="nightly", state="failed", since=datetime.now(UTC))
    events: list[Event] = await ms.events(types=[RunFailed, "RunRetrying"])
    print(schedule.missed, runs[0].started_at, events)


def alert(event: RunFailed) -> None:
    print(event.error, event.run_id)


async def either(event: RunSucceeded | RunRetrying) -> None:
    print(event.began_at)


ms.on_event(RunFailed, alert)
ms.on_event(RunFailed, lambda event: print(event.error))
ms.on_event((RunSucceeded, RunRetrying), either)
ms.on_event(Event, lambda event: print(event.seq))


def life(run: StoredRun) -> None:
    running: Running = Waiting(run).dispatch("me").state
    ended: Ended = running.complete(Complete(1, 2), 3).state
    waiting: Waiting = ended.reopen(4).state
    retrying: Retrying = waiting.dispatch("me").state.retry(Fail("x", retry_at=9), 5).state
    again: Waiting = retrying.reschedule(6).state
    gone: Ended = again.cancel("no", 7).state
    unblocked: Waiting = Blocked(run).unblock(8).state
    print(gone, unblocked)


# ── the doors of the sources ──


class Mail(handlers.TaskHandler[dict[str, str]]):
    task_type = "mail"

    async def execute(self, ctx: Context, payload: dict[str, str]) -> handlers.TaskEvent:
        return handlers.TaskEvent("mailed", payload["to"])

    def validate(self, payload: dict[str, str]) -> None: ...


class Alert:
    async def handle(self, event: scheduler.TaskFailed) -> None:
        print(event.error, event.will_retry)


async def agents() -> None:
    made: HttpAgent = ms.http("agent", "https://example.com/x", cron="0 9 * * *", payload={"a": 1}, headers={"A": "b"})
    await ms.schedule("again", Http("https://example.com/x", method="PUT"), every="1h", payload=[1, 2], timeout="5s")
    await ms.update("again", task=made, payload=None)
    secret: str = await ms.rotate_secret("again", overlap="1h")
    print(secret)


async def door_000() -> None:
    door = scheduler.Scheduler(ms)
    task_id: str = await door.schedule_once(bare, datetime.now(UTC), "acme", copies=2)
    await door.schedule_delayed(with_context, timedelta(seconds=60), "acme")
    await door.schedule_recurring(morning, "0 0 9 * * *")
    await door.cancel(task_id, reason="not needed")
    door.on_event(scheduler.TaskFailed, Alert())
    door.on_event(scheduler.TaskCompleted, lambda event: print(event.duration_ms))


async def door_001() -> None:
    door = handlers.Scheduler(ms, [Mail()], default_max_retries=4)
    await door.schedule_task("daily", task_type="mail", cron="0 0 0 * * *", payload={"to": "acme"})
    tasks: list[handlers.ScheduledTask] = await door.list_tasks(handlers.TaskFilter(enabled=True))
    print(tasks[0].retry_count)


async def deps_are_typed(context: jobs.TaskContext[list[str]]) -> None:
    context.deps.append(context.run.job_id)


async def door_003() -> None:
    job: jobs.Job[list[str]] = jobs.Job("j", jobs.Schedule.interval("5s"), [""], jobs.Task.from_async(deps_are_typed))
    report: jobs.SchedulerReport = await jobs.Scheduler(ms).run(job.with_max_runs(1).with_missed_run_policy("skip"))
    plain: jobs.Job[None] = jobs.Job.without_deps("p", jobs.Schedule.cron("@daily"), jobs.Task.from_sync(print))
    print(report.history[0].status, plain)
