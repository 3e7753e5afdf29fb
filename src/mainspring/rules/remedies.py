"""Remedies: the shell commands that log lines, warnings and reports name, so that a person can copy them."""

from __future__ import annotations

import shlex
from typing import Literal

from mainspring.model.settings import DEFAULT_NAMESPACE

#: Commands of `mainspring schedules` that messages name.
Verb = Literal["resume", "use-code", "rewind"]


def schedule_command(verb: Verb, name: str, ns: str) -> str:
    """Return the command that applies `verb` to the schedule `name` of namespace `ns`, quoted for a shell."""
    where = "" if ns == DEFAULT_NAMESPACE else f" --namespace {shlex.quote(ns)}"
    return f"mainspring schedules {verb} {shlex.quote(name)}{where}"
