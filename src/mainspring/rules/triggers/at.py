"""`At`: a trigger with an explicit list of instants."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms, instant_ms, isoformat
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.trigger import AtSpec
from mainspring.rules.triggers.base import Finding, Trigger


class At(Trigger):
    """A trigger that fires once at each of the given aware datetimes. With an empty list, it never fires."""

    __slots__ = ()

    spec: AtSpec

    @refuse_unknown_options("At(…)", {"run_at": "Write At(datetime(…, tzinfo=UTC))"})
    def __init__(self, times: datetime | Iterable[datetime]) -> None:
        given: object = times
        if isinstance(given, str):
            raise _text_is_no_list(given)
        if not isinstance(given, datetime | Iterable):
            raise InvalidInput("times", f"{given!r} is not a list of times", "Give an aware datetime, or several")
        several = (times,) if isinstance(times, datetime) else times
        self._set(spec=AtSpec(tuple(sorted({instant_ms(time, field="times") for time in several}))))

    @classmethod
    def from_spec(cls, spec: AtSpec) -> At:
        """Return the trigger of a stored spec."""
        trigger = cls.__new__(cls)
        trigger._set(spec=AtSpec(tuple(sorted(set(spec.times)))))
        return trigger

    def next_ms(self, after: Ms) -> Ms | None:
        index = bisect_right(self.spec.times, after)
        return self.spec.times[index] if index < len(self.spec.times) else None

    def count_ms(self, after: Ms, through: Ms) -> int:
        return max(0, bisect_right(self.spec.times, through) - bisect_right(self.spec.times, after))

    def fires_ms(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        first, end = bisect_right(self.spec.times, after), bisect_right(self.spec.times, through)
        return list(self.spec.times[first : min(end, first + max(0, limit))])

    def last_ms(self, after: Ms, through: Ms, n: int) -> list[Ms]:
        first, end = bisect_right(self.spec.times, after), bisect_right(self.spec.times, through)
        return list(self.spec.times[max(first, end - max(0, n)) : end])

    def describe(self) -> str:
        times = self.spec.times
        if not times:
            return "Never: the list of times is empty"
        if len(times) <= 3:
            return "At " + " and ".join(isoformat(time) for time in times)
        return f"At {len(times)} times from {isoformat(times[0])} to {isoformat(times[-1])}"

    def lint(self, *, zone_given: bool | None = None, around: datetime | None = None) -> list[Finding]:
        if not self.spec.times:
            return [Finding("L001", "never fires: the list of times is empty. Give at least one time")]
        if around is not None and self.next_ms(instant_ms(around, field="around")) is None:
            last = isoformat(self.spec.times[-1])
            return [Finding("L001", f"never fires again: the last time was {last}. Give a time that is still to come")]
        return []


def _text_is_no_list(text: str) -> InvalidInput:
    """Return the error for a text in place of the times, which shows the datetime that the text stands for."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return InvalidInput("times", f"{text!r} is not a list of times", "Give an aware datetime, or several")
    parts = ", ".join(str(part) for part in time.timetuple()[: 6 if time.second else 5])
    fix = f'Write datetime({parts}, tzinfo=ZoneInfo("Europe/Berlin")), with your zone'
    return InvalidInput("times", f"{text!r} is text", fix)
