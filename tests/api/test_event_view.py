"""Events in the stream: times are RFC 3339, results are decoded, and no number is taken for a time."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from mainspring import Mainspring, Window
from mainspring.api.event_view import event_view
from mainspring.model.events import (
    Event,
    FiresElided,
    LogCompacted,
    RunRetrying,
    RunSucceeded,
    ScheduleCreated,
    SchedulePaused,
    ScheduleSnapshot,
)
from mainspring.testing import travel
from tests.stored_rows import stored

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
AT = 1_772_438_400_000
TEXT = "2026-03-02T08:00:00Z"
#: An instant that was forgotten: thirteen digits.
STRAY = re.compile(r"(?<!\d)1[67]\d{11}(?!\d)")


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (
            RunSucceeded(began_at=AT, ms=12, result='{"status":200,"content_type":"a","at_ms":1}'),
            {"beganAt": TEXT, "ms": 12, "result": {"status": 200, "content_type": "a", "at_ms": 1}},
        ),
        (RunSucceeded(result='"text"'), {"result": "text"}),
        (RunSucceeded(result="no json"), {"result": "no json"}),
        (RunRetrying(next_attempt_at=AT, error="x"), {"nextAttemptAt": TEXT, "error": "x"}),
        (SchedulePaused(reason="x", until=AT), {"reason": "x", "until": TEXT}),
        (
            FiresElided(revision=1, after=AT, through=AT, count=3, reason="missed"),
            {"revision": 1, "after": TEXT, "through": TEXT, "count": 3, "reason": "missed"},
        ),
        (
            LogCompacted(through=7, streams=1, events=2, tallies=3, digest="d"),
            {"through": 7, "streams": 1, "events": 2, "tallies": 3, "digest": "d"},
        ),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Event) else "",
)
def test_the_data_of_an_event(event: Event, data: dict[str, Any]) -> None:
    view = event_view(msgspec.structs.replace(event, at=AT))
    assert (view["type"], view["at"], view["data"]) == (type(event).__name__, TEXT, data)


async def test_the_definition_of_a_schedule(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    async with travel(ms, START):
        window = Window("08:00-18:00")
        await ms.schedule("x", work, at=[datetime(2026, 3, 3, tzinfo=UTC)], start=START, window=window)
        (event,) = await ms.events(types=[ScheduleCreated])
        data = event_view(event)["data"]
        assert (data["spec"]["trigger"]["times"], data["spec"]["start"]) == (["2026-03-03T00:00:00Z"], TEXT)
        assert data["spec"]["options"]["window"]["segments"] == [{"start": 28_800, "end": 64_800}]
        assert (data["cursor"], data["anchor"]) == (TEXT, TEXT)
        row = await stored(ms, ms.get("x"))
        snapshot = ScheduleSnapshot(schedule_id=row.id, at=AT, state=row, definitions=())
        for one in (event, snapshot):
            assert not STRAY.search(json.dumps(event_view(one)))
