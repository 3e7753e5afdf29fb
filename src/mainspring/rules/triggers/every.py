"""`Every`: a trigger that fires at an anchor plus whole multiples of an interval."""

from __future__ import annotations

from datetime import datetime

from mainspring.model.errors import InvalidDuration, InvalidInput
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration, instant_ms, isoformat
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.policies import check_choice
from mainspring.model.trigger import EverySpec, First
from mainspring.rules.triggers.base import LAST_MS, Finding, Trigger


class Every(Trigger):
    """A trigger that fires every `interval`, counted from the moment when the schedule was first stored; at least 1 ms.

    After an edit that changes the interval, it counts from the edit. `anchor` is another moment to count from, itself
    no fire; without one, a direct call of a method counts from the instant `after` that it is given. With
    `fixed_delay`, a schedule counts from the end of its last run, so only the settler can compute its next fire. With
    `first="now"`, a schedule fires when it is created, not one interval later; direct calls of methods ignore it.
    """

    __slots__ = ()

    spec: EverySpec

    @refuse_unknown_options("Every(…)", dict.fromkeys(("seconds", "minutes", "hours", "days"), 'Write Every("10m")'))
    def __init__(
        self,
        interval: Duration,
        anchor: datetime | None = None,
        fixed_delay: bool = False,
        first: First | None = None,
    ) -> None:
        if first is not None:
            check_choice(first, ("now",), field="first")
            if anchor is not None:
                raise InvalidInput("first", "the anchor already says when the interval fires", "Give one of them")
        spec = EverySpec(
            duration_ms(interval, field="interval", minimum=1),
            None if anchor is None else instant_ms(anchor, field="anchor"),
            bool(fixed_delay),
            first,
        )
        object.__setattr__(self, "spec", spec)

    @classmethod
    def from_spec(cls, spec: EverySpec) -> Every:
        """Return the trigger of a stored spec. Raises `InvalidDuration` if the interval is shorter than 1 ms."""
        if spec.interval < 1:
            raise InvalidDuration("interval", f"{spec.interval} ms is too short", "The shortest is 1ms")
        trigger = cls.__new__(cls)
        object.__setattr__(trigger, "spec", spec)
        return trigger

    def next_ms(self, after: Ms) -> Ms | None:
        anchor, interval = self._anchor(after), self.spec.interval
        found = anchor + interval if after < anchor else anchor + ((after - anchor) // interval + 1) * interval
        return found if found <= LAST_MS else None

    def count_ms(self, after: Ms, through: Ms) -> int:
        first, last = self._numbers(after, through)
        return max(0, last - first + 1)

    def fires_ms(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        first, last = self._numbers(after, through)
        return self._instants(after, first, min(last, first + max(0, limit) - 1))

    def last_ms(self, after: Ms, through: Ms, n: int) -> list[Ms]:
        first, last = self._numbers(after, through)
        return self._instants(after, max(first, last - max(0, n) + 1), last)

    def _anchor(self, after: Ms) -> Ms:
        return after if self.spec.anchor is None else self.spec.anchor

    def _numbers(self, after: Ms, through: Ms) -> tuple[int, int]:
        """Return the first and last n whose fire lies in (after, through]. If there is none, return first > last."""
        anchor, interval = self._anchor(after), self.spec.interval
        return max(1, (after - anchor) // interval + 1), (min(through, LAST_MS) - anchor) // interval

    def _instants(self, after: Ms, first: int, last: int) -> list[Ms]:
        """Return the instants of the fires from number n = `first` to n = `last`, counted from the anchor.

        `after` is the anchor if the trigger has none of its own; else it is ignored.
        """
        anchor, interval = self._anchor(after), self.spec.interval
        return [anchor + n * interval for n in range(first, last + 1)]

    def describe(self) -> str:
        text = f"Every {_words(self.spec.interval)}"
        if self.spec.fixed_delay:
            text += " after the end of the last run"
        if self.spec.anchor is not None:
            text += f", counted from {isoformat(self.spec.anchor)}"
        if self.spec.first is not None:
            text += ", first at once"
        return text

    def lint(self, *, zone_given: bool | None = None, around: datetime | None = None) -> list[Finding]:
        if self.next_ms(instant_ms(around, field="around") if around else self.spec.anchor or 0) is None:
            text = "never fires: its next time would be after the year 9998"
            return [Finding("L001", f"{text}. Write an interval shorter than {format_duration(self.spec.interval)}")]
        return []


def _words(ms: Ms) -> str:
    """Return a duration in words that follow "every": '5 minutes', 'hour', or '1h30m' if it needs several units."""
    for name, size in (
        ("day", 86_400_000),
        ("hour", 3_600_000),
        ("minute", 60_000),
        ("second", 1_000),
        ("millisecond", 1),
    ):
        count, rest = divmod(ms, size)
        if rest == 0:
            return name if count == 1 else f"{count} {name}s"
        if count:
            break
    return format_duration(ms)
