"""Redeploys: what happens to the schedules that code declares when another version of the code starts."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from mainspring.model.schedule import Schedule

#: `create` the schedule; do `nothing`; `resume` it, as it was paused because no code declared it; `update` it with a
#: new revision; keep the `drift`, a person's edit; or report a `conflict`, as newer code declares it otherwise.
Verdict = Literal["create", "nothing", "resume", "update", "drift", "conflict"]


class LiveDeclaration(Struct, frozen=True):
    """The declaration of a schedule by another live instance of the app: the version of its code, and the digest."""

    version: str
    digest: str


def judge_declaration(
    existing: Schedule | None,
    digest: str,
    version: str,
    live: tuple[LiveDeclaration, ...],
    on_drift: Literal["keep", "code"],
) -> Verdict:
    """Return what to do with the declaration of a schedule, given by its digest and the version of the code.

    `existing` is the stored schedule, None if there is none. A declaration equal to the stored one changes nothing. A
    person's edit stays unless `on_drift` is "code". A declaration that a newer live version has changed is not applied.
    """
    if existing is None:
        return "create"
    if existing.digest == digest:
        return _judge_unchanged(existing, on_drift)
    if any(other.digest != digest and version_key(other.version) > version_key(version) for other in live):
        return "conflict"
    return "drift" if existing.drifted and on_drift == "keep" else "update"


def _judge_unchanged(existing: Schedule, on_drift: Literal["keep", "code"]) -> Verdict:
    if existing.drifted and on_drift == "code":
        return "update"
    return "resume" if existing.state == "paused" and existing.reason == "not_declared" else "nothing"


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for versions: 1.10 after 1.9, text before numbers, the empty version before all."""
    parts = re.findall(r"\d+|[a-zA-Z]+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
