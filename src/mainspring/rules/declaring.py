"""Declared schedules: what a redeploy does to a schedule that code declares."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from mainspring.model.schedule import Schedule

Verdict = Literal["create", "nothing", "resume", "update", "drift", "conflict"]


class Live(Struct, frozen=True):
    """What another live instance of the same app declares under this name."""

    version: str
    digest: str


def judge(
    existing: Schedule | None, digest: str, version: str, live: tuple[Live, ...], on_drift: Literal["keep", "code"]
) -> Verdict:
    """What to do with a declaration.

    Absent: created. Unchanged: nothing (resumed if it was paused because nobody declared it).
    Edited by a person since: the edit stands. Declared otherwise by a newer live version: not applied.
    Changed: a new revision.
    """
    if existing is None:
        return "create"
    if existing.digest == digest:
        if existing.drifted and on_drift == "code":
            return "update"
        return "resume" if existing.state == "paused" and existing.reason == "not_declared" else "nothing"
    newer = (one for one in live if one.digest != digest and version_key(one.version) > version_key(version))
    if next(newer, None) is not None:
        return "conflict"
    if existing.drifted and on_drift == "keep":
        return "drift"
    return "update"


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """1.10 after 1.9; text compares as text and before numbers; the empty version before all."""
    parts = re.findall(r"\d+|[a-zA-Z]+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
