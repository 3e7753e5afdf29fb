"""Drift: compare the definition that code declares with the stored one that a person edited, and say it in words."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.instant import Ms, isoformat
from mainspring.model.masked_events import mask_spec
from mainspring.model.schedule import ScheduleSpec
from mainspring.rules.remedies import schedule_command
from mainspring.rules.triggers import compile_trigger

#: Most characters of one field's value in a text about a drift.
MAX_VALUE_CHARS = 80


class Drift(Struct, frozen=True):
    """A schedule whose stored definition, edited by a person, is not the one that the code declares.

    `code` and `stored` name the fields that differ, with the value of the code and the stored value. `by` made the
    edit, at the instant `at`.
    """

    ns: str
    name: str
    code: str
    stored: str
    by: str
    at: Ms

    @property
    def command(self) -> str:
        """The shell command that makes the definition of the code the stored one."""
        return schedule_command("use-code", self.name, self.ns)

    def describe(self) -> str:
        """Return the drift and the way out, as one line for logs, health and reports."""
        return (
            f"schedule {self.name!r} is not as the code declares it: the code says {self.code}; "
            f"{self.by or 'api'} edited it at {isoformat(self.at)}, so it stays {self.stored}. "
            f"To use the code's definition: {self.command}"
        )


def compare_definitions(code: ScheduleSpec, stored: ScheduleSpec) -> tuple[str, str] | None:
    """Return the fields in which two definitions differ, as words for each of them; None if they are equal."""
    code, stored = mask_spec(code), mask_spec(stored)
    fields = [name for name in code.__struct_fields__ if getattr(code, name) != getattr(stored, name)]
    if not fields:
        return None
    return ", ".join(_words(code, name) for name in fields), ", ".join(_words(stored, name) for name in fields)


def _words(spec: ScheduleSpec, name: str) -> str:
    """Return one field of a definition in words: a trigger as a sentence, another field as name=value."""
    if name == "trigger":
        text = compile_trigger(spec.trigger).describe()
        return text[:1].lower() + text[1:]
    value: Any = msgspec.to_builtins(getattr(spec, name))
    text = repr(value)
    return f"{name}={text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + '…'}"
