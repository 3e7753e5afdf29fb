"""Origins: decide which of several programs holds the name of a task or schedule that they declare from other code.

The origin of a task is the module and qualified name of its function, such as `shop.jobs:send`. A schedule has the
origin of its task. A name without an origin, such as that of a schedule of an HTTP agent, belongs to no program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from mainspring.model.instant import Ms, format_duration

#: The name of a task or of a schedule: ("task", "send").
Name = tuple[Literal["task", "schedule"], str]


class Holder(Struct, frozen=True):
    """Another instance, with the names that it holds.

    `origins`: name → origin of the code behind it. `live`: it runs. `recent`: it runs, or it stopped so lately that its
    program may just be restarting.
    """

    instance: str
    app: str
    version: str
    origins: Mapping[Name, str]
    live: bool = True
    recent: bool = True


class Conflict(Struct, frozen=True):
    """A name that another instance holds from other code than the code of this program, which is `origin`."""

    name: Name
    origin: str
    holder: Holder

    @property
    def held_by(self) -> str:
        """The origin of the holder's code."""
        return self.holder.origins[self.name]


def find_conflicts(
    own: Mapping[Name, str], waiting: Collection[Name], others: Iterable[Holder]
) -> dict[Name, Conflict]:
    """Return the conflicts about the names in `own` (name → origin) with `others`, by name.

    A program that waits for a name, one in `waiting`, gets it when no other instance is there that held it lately
    (`Holder.recent`): a program that restarts keeps its names. Any other program only gives way to a live one.
    """
    found: dict[Name, Conflict] = {}
    for holder in others:
        for name, origin in own.items():
            theirs = holder.origins.get(name, origin)
            if theirs != origin and (holder.live or (holder.recent and name in waiting)):
                found.setdefault(name, Conflict(name, origin, holder))
    return found


def describe_conflicts(conflicts: Iterable[Conflict], lease_ttl: Ms) -> list[str]:
    """Return one line for each instance that holds names of this program: which, from which code, and the ways out."""
    by_instance: dict[str, list[Conflict]] = {}
    for conflict in conflicts:
        by_instance.setdefault(conflict.holder.instance, []).append(conflict)
    lines = []
    for instance, several in sorted(by_instance.items()):
        names = ", ".join(f"{kind} {name!r}" for kind, name in sorted({one.name for one in several}, reverse=True))
        theirs = ", ".join(sorted({one.held_by for one in several}))
        ours = ", ".join(sorted({one.origin for one in several}))
        lines.append(
            f"{names}: instance {instance} (app {several[0].holder.app!r}) holds this name from other code ({theirs}; "
            f"here {ours}). This program applies neither its schedule nor its task. Give one program its own "
            f"namespace=…, or the task another name=…. This program takes over once the other has been gone for "
            f"{format_duration(lease_ttl)}"
        )
    return lines
