"""Every error Mainspring raises, in one tree; a class's docstring is its default message."""

from __future__ import annotations

from collections.abc import Iterable


class MainspringError(Exception):
    """Something went wrong in Mainspring."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


class RunsAlready(MainspringError):
    """this Mainspring runs already: one run(), running() or lifespan() at a time"""


class InvalidInput(MainspringError, ValueError):
    """A value is not acceptable: `field` says where, `fix` what would be right."""

    def __init__(self, field: str, problem: str, fix: str = "") -> None:
        self.field = field
        self.problem = problem
        self.fix = fix
        super().__init__(f"{field}: {problem}" + (f". {fix}" if fix else ""))


class InvalidCron(InvalidInput):
    """A cron expression that cannot be read; `position` is the offset of the offending text."""

    def __init__(self, expression: str, position: int, field: str, problem: str, fix: str = "") -> None:
        self.expression = expression
        self.position = position
        super().__init__(field, f"{problem} (in {expression!r} at position {position})", fix)


class UnknownZone(InvalidInput):
    """A time zone that is not in the tz database."""


class InvalidDuration(InvalidInput):
    """Text or a number that is not a usable duration."""


class NaiveDatetime(InvalidInput):
    """A datetime without a time zone."""


class PayloadNotSerialisable(InvalidInput):
    """An argument that JSON cannot carry."""


class PayloadTooLarge(InvalidInput):
    """The arguments are larger than the payload limit."""


class WrongArguments(InvalidInput, TypeError):
    """The arguments do not fit the task's signature."""


class EmptyName(InvalidInput):
    """A name that is empty, too long or holds control characters."""


class LeaseTooShort(InvalidInput):
    """A lease shorter than three heartbeats or 300 ms."""


class DuplicateTask(InvalidInput):
    """Two functions under one task name."""


class ScheduleConflict(InvalidInput):
    """A schedule of this name exists with another definition."""


class UnknownTask(MainspringError, LookupError):
    """No task of this name is registered here."""


class UnknownSchedule(MainspringError, LookupError):
    """No schedule of this name or id exists."""


class UnknownRun(MainspringError, LookupError):
    """No run of this id exists."""


class IllegalTransition(MainspringError):
    """The run's state does not allow this move."""


class LeaseLost(MainspringError):
    """The run's lease ended before its outcome was stored."""


class LockTaken(MainspringError):
    """Somebody else holds the lock; `holder` says who."""

    def __init__(self, name: str, holder: str = "", message: str | None = None) -> None:
        self.name = name
        self.holder = holder
        super().__init__(message or f"the lock {name!r} is held" + (f" by {holder}" if holder else ""))


class ExecutionTaken(LockTaken):
    """Another instance executes this fire; `done` when it has done so."""

    def __init__(self, name: str, holder: str, message: str, *, done: bool) -> None:
        self.done = done
        super().__init__(name, holder, message)


class LockLost(MainspringError):
    """The lock may be another's: what the block did last is not protected by it."""

    def __init__(self, name: str, token: int, reason: str) -> None:
        self.name = name
        self.token = token
        self.reason = reason
        super().__init__(f"the lock {name!r} (token {token}) was lost: {reason}")


class ResultTimeout(MainspringError, TimeoutError):
    """The run did not end within the given time."""


class RunNotSuccessful(MainspringError):
    """The run ended without a result: failed, cancelled, skipped or lost."""

    def __init__(self, run_id: str, state: str, error: str | None) -> None:
        self.run_id = run_id
        self.state = state
        self.error = error
        super().__init__(f"run {run_id} ended as {state}" + (f": {error}" if error else ""))


class SyncOnLoop(MainspringError):
    """A blocking call was made on a running event loop's own thread."""


class StoreError(MainspringError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written right now; nothing was changed."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke while a change was being stored, and the store cannot be asked whether it was."""


class StoreDenied(StoreError):
    """The store refused the user, the password or a right that is needed; nothing was changed."""


class StoreFull(StoreUnavailable):
    """The disk under the store is full; nothing was changed."""


class StoreNearlyFull(StoreError):
    """The store keeps what memory is left for work under way; nothing was changed."""


class StoreReadOnly(StoreUnavailable):
    """The store's file or directory cannot be written; nothing was changed."""


class StoreCorrupt(StoreError):
    """The store's file is damaged or is not a Mainspring store; it was left as it is."""


class SchemaMismatch(StoreError):
    """The store's schema is of another version than this Mainspring knows."""


class NetworkFilesystem(StoreError):
    """SQLite on a network file system cannot keep its promises."""


class BrokerError(MainspringError):
    """The broker could not do what was asked; nothing is lost, the store has everything."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached right now."""


class BrokerDenied(BrokerError):
    """The broker refused the user, the password or a right that is needed."""


class CopyRefused(MainspringError):
    """These two stores cannot be copied like this."""


class MissingExtra(MainspringError, ImportError):
    """A backend needs a package that is not installed."""


def nearest(value: str, known: Iterable[str]) -> str:
    """A 'Did you mean …?' sentence, or an empty string when nothing is near."""
    import difflib  # only a mistake needs it

    by_lower = {name.lower(): str(name) for name in known}
    found = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[found[0]]!r}?" if found else ""
