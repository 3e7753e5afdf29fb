"""Unserved tasks: tasks for which runs wait, and which no live instance has."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.http import HTTP_TASK

#: Most names of schedules in a text about an unserved task.
MAX_NAMED_SCHEDULES = 5


class UnservedTask(Struct, frozen=True):
    """A task that no live instance has, with the runs that are due and wait for it.

    `runs` is their number, `more` is True if there are more runs than were counted. `schedules`: the names of the
    schedules that made them.
    """

    task: str
    runs: int
    schedules: tuple[str, ...] = ()
    more: bool = False

    def describe(self) -> str:
        """Return what is wrong and what to do, as one line for logs, health and reports."""
        count = f"{'over ' if self.more else ''}{self.runs} run{'' if self.runs == 1 else 's'}"
        verb = "waits" if self.runs == 1 else "wait"
        if self.task == HTTP_TASK:
            text = f"{count} {verb} for HTTP agents, which no live instance calls"
            fix = "Start an instance that calls them"
        else:
            text = f"{count} {verb} for the task {self.task!r}, which no live instance has"
            fix = "Start a program that declares it"
        if not self.schedules:
            return f"{text}. {fix}, or cancel the run{'' if self.runs == 1 else 's'}"
        named = ", ".join(self.schedules[:MAX_NAMED_SCHEDULES])
        rest = len(self.schedules) - MAX_NAMED_SCHEDULES
        named = f"{named} and {rest} more" if rest > 0 else named
        return f"{text}; schedules: {named}. {fix}, or delete the schedule{'' if len(self.schedules) == 1 else 's'}"
