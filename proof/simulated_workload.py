"""The work of a simulated world: handlers of several kinds, schedules with every policy, and a client's commands."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any, Protocol

from mainspring.app.context import Context
from mainspring.app.internals import registry_of
from mainspring.app.mainspring import Mainspring
from mainspring.model.errors import MainspringError
from mainspring.model.instant import to_datetime
from mainspring.model.outcome import Cancel, Snooze
from mainspring.model.policies import MISSED, ON_CONFLICT, OVERLAP, Retry
from mainspring.model.run import OPEN, State
from mainspring.rules.triggers import Every
from mainspring.rules.windows import Window

QUICK_RETRY = Retry(max_attempts=3, initial="200ms", max_delay="1s", jitter=0.5)
#: Task name → its options; `behave` has the handlers.
TASKS: dict[str, dict[str, Any]] = {
    "quick": {},
    "slow": {"retry": QUICK_RETRY},
    "long": {"retry": QUICK_RETRY, "max_crashes": 20},
    "shaky": {"retry": QUICK_RETRY},
    "doomed": {"retry": Retry(max_attempts=2, backoff="fixed", initial="300ms", jitter=0)},
    "timely": {"retry": QUICK_RETRY, "timeout": "700ms"},
    "once": {"recovery": "fail", "retry": Retry(max_attempts=1)},
    "sleepy": {"retry": QUICK_RETRY},
    "narrow": {"limit": 2, "retry": QUICK_RETRY},
}
AT_MOST_ONCE = ("once",)
SCHEDULE_NAMES = tuple(f"s{i}" for i in range(5))


class HandlerLog(Protocol):
    """The handlers' own log, and the values on which handlers depend; `lease` is the length of a lease in seconds.

    `called` logs that a handler begins, and returns the number of the call. `returned` logs that this call has ended.
    """

    seed: int
    lease: float
    tasks: tuple[str, ...]

    def called(self, ctx: Context) -> int: ...

    def returned(self, call: int) -> None: ...


async def run_handler(log: HandlerLog, task: str, ctx: Context) -> Any:
    """Carry out one attempt of a task, as its handler.

    What happens depends only on the task, the seed, the run and its epoch.
    """
    call = log.called(ctx)
    luck = random.Random(f"{log.seed}:{ctx.run_id}:{ctx.epoch}")  # noqa: S311 - no secret
    match task:
        case "slow" | "narrow":
            await asyncio.sleep(luck.uniform(0.05, 1.2))
        case "once":
            await asyncio.sleep(luck.uniform(0.05, 3))
        case "long":
            await asyncio.sleep(luck.uniform(1, 3) * log.lease)
        case "shaky" if luck.random() < 0.5:
            await asyncio.sleep(luck.uniform(0, 0.2))
            raise LookupError("as planned")
        case "doomed":
            raise ValueError("always")
        case "timely":
            await asyncio.sleep(luck.choice((0.1, 2.0)))
        case "sleepy" if luck.random() < 0.4:
            log.returned(call)
            return luck.choice((Snooze("500ms"), Snooze("1s"), Cancel("enough")))
        case _:
            await asyncio.sleep(0)
    log.returned(call)
    return None


def register_tasks(app: Mainspring, log: HandlerLog, declared: dict[str, dict[str, Any]]) -> None:
    """Register the tasks of a world on `app`, with handlers that write to `log`, and declare the schedules `declared`.

    `declared`: name → options of the schedule, with the name of its task as `task`.
    """

    def handler(task: str) -> Any:
        async def run(ctx: Context, n: int = 0) -> Any:
            return await run_handler(log, task, ctx)

        return run

    for task in log.tasks:
        app.task(name=task, **TASKS[task])(handler(task))
    for name, wanted in declared.items():
        registry_of(app).declared[name] = {
            "task": app.tasks[wanted["task"]],
            **{k: v for k, v in wanted.items() if k != "task"},
        }


def schedule_options(rng: random.Random, start: Any, length: float) -> dict[str, Any]:
    """Draw the options of a schedule: one trigger of any kind, and policies.

    Instants among them lie in the `length` seconds after `start`.
    """
    options: dict[str, Any] = {
        "missed": rng.choice(MISSED),
        "overlap": rng.choice(OVERLAP),
        "grace": rng.choice(("500ms", "2s", "60s")),
        "priority": rng.randrange(4),
    }
    match rng.choice(("cron", "cron", "every", "every", "delay", "at")):
        case "cron":
            options["cron"] = rng.choice(("* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "1-59/3 * * * * *"))
        case "every":
            options["every"] = rng.choice(("700ms", "1s", "1500ms", "3s", "4s"))
        case "delay":
            options["every"] = Every(rng.choice(("500ms", "1s", "2s")), fixed_delay=True)
        case "at":
            options["at"] = [start + timedelta(seconds=rng.uniform(1, length)) for _ in range(rng.randint(1, 5))]
    options.update(_limits(rng, start, length))
    options.update(_rare_policies(rng))
    return options


def _limits(rng: random.Random, start: Any, length: float) -> dict[str, Any]:
    """Draw the options `max_runs`, `end` and `start` of a schedule, each with a low probability."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["max_runs"] = rng.randint(1, 8)
    if rng.random() < 0.15:
        options["end"] = start + timedelta(seconds=rng.uniform(2, length))
    if rng.random() < 0.15:
        options["start"] = start + timedelta(seconds=rng.uniform(0, length / 2))
        if options.get("end", options["start"]) < options["start"]:
            del options["end"]
    return options


def _rare_policies(rng: random.Random) -> dict[str, Any]:
    """Draw further policies of a schedule, each with a low probability."""
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options["jitter"] = "400ms"
    if rng.random() < 0.1:
        options["spread"] = "600ms"
    if rng.random() < 0.1:
        options["start_deadline"] = "1s"
    if rng.random() < 0.1:
        options["on_exhausted"] = "pause"
    if rng.random() < 0.1:
        options["replay_max"] = rng.randint(1, 5)
    if rng.random() < 0.1:
        options["terminal"] = "delete"
    if rng.random() < 0.1:
        second = rng.randint(2, 40)
        options["window"] = Window(f"08:00:{second:02d}-08:00:{second + 15:02d}")
    if rng.random() < 0.15:
        options["recovery"] = "fail"
    return options


class Client:
    """A client that sends random commands, some of which fail.

    `acknowledged` holds the ids of the runs whose creation was confirmed. `length`: as for `schedule_options`.
    `renames`: True if the client renames schedules, too.
    """

    def __init__(self, app: Mainspring, rng: random.Random, length: float, *, renames: bool) -> None:
        self.app = app
        self.renames = renames
        self.tasks = tuple(app.tasks)
        self.rng = rng
        self.length = length
        self.acknowledged: list[str] = []
        self.errors: list[str] = []

    async def send_command(self) -> None:
        """Send one random command; keep the text of its error, if it fails."""
        command = self.rng.choice(
            [self.enqueue] * 3
            + [self.enqueue_many, self.create, self.create, self.edit, self.edit, self.pause, self.resume]
            + [self.trigger, self.delete, self.cancel, self.reopen]
            + [self.rename] * (2 if self.renames else 0)
        )
        try:
            await command()
        except MainspringError as error:
            self.errors.append(f"{command.__name__}: {error}")

    async def enqueue(self) -> None:
        rng = self.rng
        task = self.app.tasks[rng.choice(self.tasks)]
        how = task.using(
            priority=rng.randrange(4),
            delay=rng.choice((None, None, "300ms", "2s")),
            unique=rng.choice((None, None, "a", "b")),
        )
        self.acknowledged.append((await how.enqueue()).id)

    async def enqueue_many(self) -> None:
        task = self.app.tasks[self.rng.choice(self.tasks)]
        handles = await task.enqueue_many([() for _ in range(self.rng.randint(2, 6))])
        self.acknowledged.extend(handle.id for handle in handles)

    async def create(self) -> None:
        rng = self.rng
        options = schedule_options(rng, to_datetime(self.app.clock.now()), self.length)
        conflict = rng.choice(ON_CONFLICT)
        await self.app.schedule(rng.choice(SCHEDULE_NAMES), rng.choice(self.tasks), on_conflict=conflict, **options)

    async def edit(self) -> None:
        rng = self.rng
        options = schedule_options(rng, to_datetime(self.app.clock.now()), self.length)
        triggers: dict[str, Any] = {key: options.pop(key) for key in ("cron", "every", "at") if key in options}
        changes: dict[str, Any] = dict(rng.sample(sorted(options.items(), key=lambda kv: kv[0]), 2))
        if rng.random() < 0.5:
            changes |= triggers
        await self.app.update(await self._schedule(), **changes)

    async def rename(self) -> None:
        await self.app.rename(await self._schedule(), self.rng.choice(SCHEDULE_NAMES))

    async def pause(self) -> None:
        until = self.app.clock.now() + self.rng.randint(500, 6_000) if self.rng.random() < 0.5 else None
        await self.app.pause(await self._schedule(), until=None if until is None else to_datetime(until))

    async def resume(self) -> None:
        await self.app.resume(await self._schedule())

    async def trigger(self) -> None:
        self.acknowledged.append((await self.app.trigger(await self._schedule())).id)

    async def delete(self) -> None:
        if self.rng.random() < 0.4:
            await self.app.delete(await self._schedule())

    async def cancel(self) -> None:
        runs = [run for run in await self.app.runs(limit=30) if run.state in OPEN]
        if runs:
            await self.app.cancel(self.rng.choice(runs).id, reason="not wanted")

    async def reopen(self) -> None:
        ended = [run for run in await self.app.runs(limit=30) if run.state in (State.FAILED, State.LOST)]
        if ended:
            await self.app.retry(self.rng.choice(ended).id)

    async def _schedule(self) -> str:
        found = await self.app.schedules()
        return self.rng.choice([row.name for row in found]) if found else "none"
