"""The errors of Mainspring, in one tree under `MainspringError`.

A class's docstring is the message that users read if the error is raised without a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

#: Similarity from which a name is suggested: 1.0 for equal names, 0.0 for names without a common letter. A word of 3
#: letters with one wrong letter is less similar than two long names that have little in common.
MIN_SIMILARITY, MIN_SIMILARITY_OF_SHORT_NAMES = 0.75, 0.65
#: Longest name that counts as short.
MAX_SHORT_CHARS = 6
#: Longest name that is compared with others for a suggestion.
MAX_COMPARED_CHARS = 64
#: Number of names with the most letters in common that are compared letter by letter.
MAX_COMPARED_NAMES = 20


class MainspringError(Exception):
    """An error in Mainspring."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


class RunsAlready(MainspringError):
    """this Mainspring runs already: one run(), running(), lifespan() or background() at a time"""


class InvalidInput(MainspringError, ValueError):
    """A value that is not acceptable.

    `field` names the parameter or key that holds the value, `problem` states what is wrong with the value, and `fix`
    suggests what to write instead ("" if there is no suggestion).
    """

    def __init__(self, field: str, problem: str, fix: str = "") -> None:
        self.field = field
        self.problem = problem
        self.fix = fix
        super().__init__(f"{field}: {problem}" + (f". {fix}" if fix else ""))


class InvalidCron(InvalidInput):
    """A cron expression that cannot be parsed. `position` is the offset in `expression` where the mistake begins."""

    def __init__(self, expression: str, position: int, field: str, problem: str, fix: str = "") -> None:
        self.expression = expression
        self.position = position
        super().__init__(field, f"{problem} (in {expression!r} at position {position})", fix)


class UnknownZone(InvalidInput):
    """A time zone that is not in the tz database."""


class InvalidDuration(InvalidInput):
    """A text or number that is not a duration, or one that is too short."""


class NaiveDatetime(InvalidInput):
    """A datetime without a time zone."""


class PayloadNotSerialisable(InvalidInput):
    """An argument that JSON cannot represent."""


class PayloadTooLarge(InvalidInput):
    """A payload, a handler's result or a message is larger than its limit."""


class WrongArguments(InvalidInput, TypeError):
    """The arguments do not fit the task's signature."""


class EmptyName(InvalidInput):
    """A name that is empty, too long or holds control characters."""


class LeaseTooShort(InvalidInput):
    """A lease shorter than three heartbeats or 300 ms."""


class DuplicateTask(InvalidInput):
    """Two functions were registered under one task name."""


class ScheduleConflict(InvalidInput):
    """A schedule of this name exists with another definition."""


class DeclaredInCode(InvalidInput):
    """Code declares the schedule, so only the code can make this change."""


class UnknownTask(MainspringError, LookupError):
    """No task of this name is registered in this process."""


class UnknownSchedule(MainspringError, LookupError):
    """No schedule of this name or id exists."""


class UnknownRun(MainspringError, LookupError):
    """No run of this id exists."""


class IllegalTransition(MainspringError):
    """The run's state does not allow this change."""


class LockTaken(MainspringError):
    """Another owner holds the lock `name`. `holder` is that owner's name, "" if it is not known."""

    def __init__(self, name: str, holder: str = "", message: str | None = None) -> None:
        self.name = name
        self.holder = holder
        super().__init__(message or f"the lock {name!r} is held" + (f" by {holder}" if holder else ""))


class ExecutionTaken(LockTaken):
    """Another instance executes this fire, or has executed it already (`done` is True)."""

    def __init__(self, name: str, holder: str, message: str, *, done: bool) -> None:
        self.done = done
        super().__init__(name, holder, message)


class LockLost(MainspringError):
    """The lock may have another holder by now, so the last actions of the locked block may have been unprotected.

    `token` is the fencing token with which the lock was acquired.
    """

    def __init__(self, name: str, token: int, reason: str) -> None:
        self.name = name
        self.token = token
        self.reason = reason
        super().__init__(f"the lock {name!r} (token {token}) was lost: {reason}")


class ResultTimeout(MainspringError, TimeoutError):
    """The run did not end within the time-out."""


class RunNotSuccessful(MainspringError):
    """The run ended without a result. `state` is failed, cancelled, skipped or lost, `error` its error text or None."""

    def __init__(self, run_id: str, state: str, error: str | None) -> None:
        self.run_id = run_id
        self.state = state
        self.error = error
        super().__init__(f"run {run_id} ended as {state}" + (f": {error}" if error else ""))


class SyncOnLoop(MainspringError):
    """A blocking call was made on the thread of a running event loop."""


class StoreError(MainspringError):
    """The store could not carry out a request."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written at present; nothing was changed."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke while a change was being stored, and the store cannot be asked whether it was stored."""


class StoreDenied(StoreError):
    """The store refused the connection or a request; nothing was changed.

    Reasons: the user, the password, a missing privilege, a missing database, or an error of TLS.
    """


class StoreFull(StoreUnavailable):
    """The disk under the store is full; nothing was changed."""


class StoreNearlyFull(StoreError):
    """The store is nearly out of memory and refuses new work, so that runs under way can end; nothing was changed."""


class StoreReadOnly(StoreUnavailable):
    """The store cannot be written: its file or directory, or its server, perhaps a standby; nothing was changed."""


class StoreCorrupt(StoreError):
    """The store is damaged, or its file is not a Mainspring store; it was left as it is."""


class SchemaMismatch(StoreError):
    """The store's schema has a version that this Mainspring does not support."""


class NetworkFilesystem(StoreError):
    """SQLite cannot guarantee durability or locking on a network file system."""


class BrokerError(MainspringError):
    """The broker could not carry out a request; nothing is lost, for all work is in the store."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached at present."""


class BrokerDenied(BrokerError):
    """The broker refused the user, the password or a privilege that is needed."""


class CopyRefused(MainspringError):
    """The copy between these two stores is refused."""


class MissingExtra(MainspringError, ImportError):
    """A part of Mainspring needs a package that is not installed."""


def suggest_nearest(value: str, known: Iterable[str]) -> str:
    """Return the sentence "Did you mean …?" with the known name nearest to `value`, or "" if none is near.

    A name of more than `MAX_COMPARED_CHARS` is near to none. Names may come from callers of an API: the bounds keep the
    time for a thousand names to some milliseconds.
    """
    import difflib  # here, because only a mistake needs it

    if len(value) > MAX_COMPARED_CHARS:
        return ""
    by_lower = {name.lower(): str(name) for name in known if len(name) <= MAX_COMPARED_CHARS}
    given = value.lower()
    matcher = difflib.SequenceMatcher(b=given)
    similar = []
    for name in by_lower:
        matcher.set_seq1(name)
        least = _min_similarity(given, name)
        if matcher.real_quick_ratio() >= least and (bound := matcher.quick_ratio()) >= least:
            similar.append((bound, name))
    best = (0.0, "")
    for _, name in heapq.nlargest(MAX_COMPARED_NAMES, similar):
        matcher.set_seq1(name)
        if (ratio := matcher.ratio()) >= _min_similarity(given, name):
            best = max(best, (ratio, name))
    return f"Did you mean {by_lower[best[1]]!r}?" if best[1] else ""


def _min_similarity(given: str, name: str) -> float:
    """Return the similarity from which `name` is suggested in place of `given`; both are in lower case."""
    is_short = min(len(given), len(name)) <= MAX_SHORT_CHARS
    if is_short or given.startswith(name) or name.startswith(given):
        return MIN_SIMILARITY_OF_SHORT_NAMES
    return MIN_SIMILARITY
