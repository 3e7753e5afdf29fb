"""Handlers, and an app with them behind the door of source 001."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mainspring import Context, Mainspring
from mainspring.compat.handlers import (
    Scheduler,
    TaskEvent,
    TaskHandler,
)
from mainspring.testing import travel
from tests.compat.door_support import START


class ReportHandler(TaskHandler[Any]):
    task_type = "generate_report"

    def __init__(self) -> None:
        self.fires: list[datetime] = []
        self.payloads: list[Any] = []

    def execute(self, ctx: Context, payload: Any) -> TaskEvent:
        self.fires.append(ctx.fire_time)
        self.payloads.append(payload)
        return TaskEvent("report_generated", payload)


class EmailData(msgspec.Struct):
    id: int
    to: str


class EmailHandler(TaskHandler[EmailData]):
    """The example of "Task Handlers": decodes, sends, answers with an event, and validates."""

    task_type = "send_email"

    def __init__(self) -> None:
        self.sent: list[EmailData] = []

    async def execute(self, ctx: Context, payload: EmailData) -> TaskEvent:
        self.sent.append(payload)
        return TaskEvent("email_sent", {"email_id": payload.id, "sent_at": ctx.fire_time.isoformat()})

    def validate(self, payload: EmailData) -> None:
        if "@" not in payload.to:
            raise ValueError(f"{payload.to!r} is no address")


class FailingHandler(TaskHandler[Any]):
    """Fails as often as it is told."""

    task_type = "failing"

    def __init__(self, times: int) -> None:
        self.left = times
        self.tried: list[datetime] = []
        self.clock: Any = None

    async def execute(self, ctx: Context, payload: Any) -> TaskEvent:
        self.tried.append(datetime.fromtimestamp(self.clock.now() / 1000, UTC))
        if self.left:
            self.left -= 1
            raise RuntimeError(f"attempt {ctx.attempt} failed")
        return TaskEvent("done_at_last")


class World:
    def __init__(self, url: str = "memory://", failures: int = 99, **options: Any) -> None:
        self.ms = Mainspring(url, lease_ttl="1h")
        self.report, self.email, self.failing = ReportHandler(), EmailHandler(), FailingHandler(failures)
        self.failing.clock = self.ms.clock
        self.scheduler = Scheduler(self.ms, [self.report, self.email], **options).with_task_handler(self.failing)
        self.events: list[TaskEvent] = []
        self.scheduler.with_event_handler(self.events.append)

    def travel(self, start: datetime = START) -> Any:
        return travel(self.ms, start)

    async def schedule(self, task_id: str = "task-id", **options: Any) -> Any:
        self.failing.clock = self.ms.clock
        return await self.scheduler.schedule_task(task_id, **{"task_type": "generate_report", **options})


def minutes(n: float) -> datetime:
    return START + timedelta(minutes=n)
