"""Base class of triggers, which compute the fire times of a schedule, describe them, and find probable mistakes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from msgspec import Struct

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms, instant_ms, to_datetime
from mainspring.model.trigger import TriggerSpec

#: The first and last instant that triggers compute with, in seconds: 0002-01-01T00:00:00Z and 9998-12-31T23:59:59Z.
#: Between them no calendar arithmetic can overflow.
FIRST_SECOND = -62_104_060_800
LAST_SECOND = 253_370_764_799
FIRST_MS: Ms = FIRST_SECOND * 1000
LAST_MS: Ms = LAST_SECOND * 1000


class Finding(Struct, frozen=True):
    """A probable mistake in a trigger: a stable code such as "L004", and a message with what to write instead."""

    code: str
    message: str


class Trigger(ABC):
    """Base class of triggers: a trigger computes when a schedule fires, as instants in whole milliseconds.

    A trigger is immutable. It computes from `spec`, which is its stored form; triggers with equal specs are equal.
    Methods that take a datetime raise `NaiveDatetime` if it has no time zone.
    """

    __slots__ = ("spec",)

    spec: TriggerSpec

    # -- instants as milliseconds, for the engine -------------------------------------------------------

    @abstractmethod
    def next_ms(self, after: Ms) -> Ms | None:
        """Return the first fire strictly after `after`, None if there is none."""

    @abstractmethod
    def count_ms(self, after: Ms, through: Ms) -> int:
        """Return the number of fires in (after, through]."""

    @abstractmethod
    def fires_ms(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        """Return the first `limit` fires in (after, through] in order, or all if there are fewer."""

    @abstractmethod
    def last_ms(self, after: Ms, through: Ms, n: int) -> list[Ms]:
        """Return the last `n` fires in (after, through] in order, or all if there are fewer."""

    def dropped_ms(self, after: Ms, through: Ms) -> list[Ms]:
        """Return the instants in (after, through] at which a clock change skips a fire that then does not run (ADR 4).

        Empty except for a `Cron` with `gap="skip"`.
        """
        return []

    # -- datetimes, for users ---------------------------------------------------------------------------

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire strictly after `instant`, in the zone of a `Cron`, else in UTC. None: there is none."""
        found = self.next_ms(instant_ms(instant, field="instant"))
        return None if found is None else to_datetime(found, self._zone())

    def upcoming(self, after: datetime, n: int) -> list[datetime]:
        """Return the next `n` fires after `after`, or all if there are fewer, in the zone of a `Cron`, else in UTC.

        Raises `InvalidInput` if `n` is negative.
        """
        if n < 0:
            raise InvalidInput("n", f"{n} is negative", "Ask for 0 fires or more")
        zone = self._zone()
        return [to_datetime(ms, zone) for ms in self.fires_ms(instant_ms(after, field="after"), LAST_MS, n)]

    def count(self, after: datetime, through: datetime) -> int:
        """Return the number of fires later than `after` and not later than `through`."""
        return self.count_ms(instant_ms(after, field="after"), instant_ms(through, field="through"))

    @abstractmethod
    def describe(self) -> str:
        """Return the trigger as an English sentence."""

    @abstractmethod
    def lint(self, *, zone_given: bool | None = None, around: datetime | None = None) -> list[Finding]:
        """Return a finding for each probable mistake in the trigger.

        `zone_given`: True if the user named a time zone; None: take it from the way in which the trigger was made.
        `around`: the instant from which to check, for example, whether a fire is still to come.
        """

    # -- an immutable value -----------------------------------------------------------------------------

    def _zone(self) -> ZoneInfo | None:
        """Return the zone of the datetimes that users get, None for UTC."""
        return None

    def _set(self, **values: Any) -> None:
        """Set attributes while a trigger is made. Assignment would fail, because a trigger refuses to be changed."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make a new one")

    def __eq__(self, other: object) -> bool:
        return self.spec == other.spec if isinstance(other, Trigger) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        shown = ((name, getattr(self.spec, name)) for name in self.spec.__struct_fields__)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"
