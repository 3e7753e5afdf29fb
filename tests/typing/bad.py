"""Wrong uses: each line with a mark must be refused by `mypy --strict`, and no other. Never run.

The mark after `# E:` is the error code mypy must give.
"""

from __future__ import annotations

from mainspring import Blocked, Context, Ended, Http, Mainspring, Retry, Retrying, Running, Waiting
from mainspring.compat import handlers, jobs, scheduler
from mainspring.model.events import RunFailed, RunSucceeded
from mainspring.model.run import Run
from mainspring.rules.run_commands import Complete, Fail

ms = Mainspring("memory://")


# ── the life of a run ──


def life(run: Run) -> None:
    done, failure = Complete(1, 2), Fail("x")
    Waiting(run).complete(done, 1)  # E: attr-defined
    Waiting(run).fail(failure, 1)  # E: attr-defined
    Waiting(run).retry(failure, 1)  # E: attr-defined
    Waiting(run).reschedule(1)  # E: attr-defined
    Waiting(run).reopen(1)  # E: attr-defined
    Retrying(run).complete(done, 1)  # E: attr-defined
    Retrying(run).fail(failure, 1)  # E: attr-defined
    Retrying(run).retry(failure, 1)  # E: attr-defined
    Running(run).dispatch("me")  # E: attr-defined
    Running(run).reschedule(1)  # E: attr-defined
    Running(run).reopen(1)  # E: attr-defined
    Ended(run).complete(done, 1)  # E: attr-defined
    Ended(run).fail(failure, 1)  # E: attr-defined
    Ended(run).retry(failure, 1)  # E: attr-defined
    Ended(run).dispatch("me")  # E: attr-defined
    Ended(run).cancel("no", 1)  # E: attr-defined
    Ended(run).reschedule(1)  # E: attr-defined
    Blocked(run).dispatch("me")  # E: attr-defined
    Blocked(run).complete(done, 1)  # E: attr-defined
    Waiting(run).dispatch("me").state.dispatch("me")  # E: attr-defined
    Running(run).complete(done, 1).state.complete(done, 2)  # E: attr-defined
    Running(run).retry(failure, 1).state.complete(done, 2)  # E: attr-defined
    Running(run).complete(failure, 1)  # E: arg-type
    Running(run).fail(done, 1)  # E: arg-type
    wrong: Waiting = Running(run).fail(failure, 1).state  # E: assignment
    print(wrong)


# ── tasks ──


@ms.task
async def coroutine(customer: str, copies: int = 1) -> float:
    return 1.5


@ms.task
def blocking(customer: str, *, copies: int = 1) -> dict[str, int]:
    return {}


@ms.task(timeout="30s")
async def with_context(ctx: Context, customer: str) -> str:
    return customer


@ms.task()
def with_context_in_thread(ctx: Context, n: int) -> bool:
    return True


@ms.cron("0 9 * * *")
async def scheduled(ctx: Context, customer: str = "acme") -> int:
    return 1


async def arguments() -> None:
    await coroutine.enqueue(1)  # E: call-overload
    await coroutine.enqueue()  # E: call-overload
    await coroutine.enqueue("acme", 2, 3)  # E: call-overload
    await coroutine.enqueue("acme", colour="red")  # E: call-overload
    await coroutine.enqueue("acme", copies="two")  # E: call-overload
    await blocking.enqueue("acme", 2)  # E: call-overload
    await blocking.enqueue(customer=2)  # E: call-overload
    await with_context.enqueue()  # E: call-overload
    await with_context.enqueue(1)  # E: call-overload
    await with_context.enqueue(None, "acme")  # E: call-overload
    await with_context_in_thread.enqueue("three")  # E: call-overload
    await with_context_in_thread.enqueue(1, 2)  # E: call-overload
    await scheduled.enqueue(5)  # E: call-overload
    await coroutine.using(delay="1s").enqueue(1)  # E: call-overload
    coroutine.sync.enqueue(1)  # E: call-overload
    with_context.sync.enqueue("acme", "more")  # E: call-overload
    await coroutine.using(connection=object()).enqueue(1)  # E: call-overload
    await coroutine(1)  # E: arg-type
    coroutine("acme")  # E: unused-coroutine
    total: int = blocking("acme")  # E: assignment
    print(total)
    blocking(customer="acme", copies="two")  # E: arg-type


async def options() -> None:
    coroutine.using(prioritty="high")  # E: call-arg
    coroutine.using(delay=[1])  # E: arg-type
    coroutine.using(at="tomorrow")  # E: arg-type
    coroutine.using(recovery="perhaps")  # E: arg-type
    coroutine.using(priority="urgent")  # E: arg-type
    coroutine.using(retry=3)  # E: arg-type
    Retry(backoff="sometimes")  # E: arg-type
    ms.task(executor="fibre")  # E: call-overload


async def results() -> None:
    text: str = await (await coroutine.enqueue("acme")).result()  # E: assignment
    number: int = await (await with_context.enqueue("acme")).result(timeout="1s")  # E: assignment
    counts: dict[str, str] = blocking.sync.enqueue("acme").result()  # E: assignment
    truth: list[bool] = await (await with_context_in_thread.enqueue(1)).result()  # E: assignment
    print(text, number, counts, truth)


# ── schedules ──


async def schedules() -> None:
    await ms.schedule("x", coroutine, cron="0 2 * * *", missed="sometimes")  # E: arg-type
    await ms.schedule("x", coroutine, cron="0 2 * * *", overlap="maybe")  # E: arg-type
    await ms.schedule("x", coroutine, cron="0 2 * * *", on_conflict="ask")  # E: arg-type
    await ms.schedule("x", coroutine, chron="0 2 * * *")  # E: call-arg
    await ms.update("x", missed="sometimes")  # E: arg-type
    await ms.pause("x", until="tomorrow")  # E: arg-type
    ms.cron("0 9 * * *", missed="sometimes")  # E: arg-type
    ms.cron("0 9 * * *", colour="red")  # E: call-arg
    ms.every([10])  # E: arg-type


# ── the sync door ──


def blocking_calls() -> None:
    ms.sync.pauze("x")  # E: attr-defined
    ms.sync.pause("x", until="tomorrow")  # E: arg-type
    ms.sync.schedule("x", coroutine, chron="0 2 * * *")  # E: call-arg
    ms.sync.update("x", missed="sometimes")  # E: arg-type
    ms.sync.runs(states="waiting")  # E: call-arg
    ms.sync.on_event(RunFailed, print)  # E: attr-defined
    name: str = ms.sync.get("x")  # E: assignment
    coroutine.sync.enqeue("acme")  # E: attr-defined
    coroutine.sync.enqueue_many(7)  # E: arg-type
    ms.call(print)  # E: attr-defined
    print(name)


# ── events ──


def alert(event: RunFailed) -> None:
    print(event.eror)  # E: attr-defined


def succeeded(event: RunSucceeded) -> None: ...


ms.on_event(RunFailed, succeeded)  # E: arg-type
ms.on_event(RunFailed, lambda event: print(event.result))  # E: attr-defined
ms.on_event("RunFailed", alert)  # E: call-overload


# ── the doors of the sources ──


async def door_000(door: scheduler.Scheduler) -> None:
    await door.schedule_delayed(coroutine, "60s")  # E: call-arg
    await door.schedule_delayed(coroutine, "60s", 7)  # E: arg-type
    await door.schedule_once(coroutine, "tomorrow", "acme")  # E: arg-type
    await door.schedule_recurring(coroutine, 5, "acme")  # E: arg-type
    await door.schedule_recurring(alert, "0 0 * * * *")  # E: arg-type
    door.on_event(scheduler.TaskFailed, lambda event: print(event.result))  # E: attr-defined
    door.on_event(RunFailed, print)  # E: type-var


class Number(handlers.TaskHandler[int]):
    task_type = "number"

    def execute(self, ctx: Context, payload: str) -> handlers.TaskEvent:  # E: override
        return handlers.TaskEvent("x")

    def validate(self, payload: str) -> None: ...  # E: override


async def door_001(door: handlers.Scheduler) -> None:
    await door.schedule_task("daily", cron="0 0 0 * * *")  # E: call-arg
    await door.schedule_task("daily", task_type="mail", interval=[5])  # E: arg-type
    await door.list_tasks(handlers.TaskFilter(enabled="yes"))  # E: arg-type
    handlers.Scheduler(ms, [alert])  # E: list-item


async def with_deps(context: jobs.TaskContext[list[str]]) -> None:
    context.deps.push("x")  # E: attr-defined


def not_async(context: jobs.TaskContext[None]) -> None: ...


async def agents() -> None:
    ms.http("x", 7, cron="0 9 * * *")  # E: arg-type
    ms.http("x", "https://example.com/x", crom="0 9 * * *")  # E: call-arg
    Http("https://example.com/x", method="post")  # E: arg-type
    Http("https://example.com/x", headers={"A": 1})  # E: dict-item
    await ms.schedule("x", 7, every="1h")  # E: arg-type


async def door_003() -> None:
    every = jobs.Schedule.interval("5s")
    jobs.Job[list[str]]("j", every, 7, jobs.Task.from_async(with_deps))  # E: arg-type
    jobs.Job.without_deps("j", every, jobs.Task.from_async(with_deps))  # E: arg-type
    jobs.Task.from_async(not_async)  # E: arg-type
    job = jobs.Job.without_deps("j", every, jobs.Task.from_sync(not_async))
    job.with_overlap_policy("maybe")  # E: arg-type
    jobs.Job.without_deps("j", "5s", job.task)  # E: arg-type
    jobs.SchedulerConfig(terminal_state_policy="drop")  # E: arg-type
    await jobs.Scheduler(ms).run("j")  # E: arg-type
