"""Redeploys: decide what happens to a schedule that code declares, when another version of the code starts."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from mainspring.model.schedule import Schedule

#: What to do with a declaration:
#: - create: the schedule does not exist; create it
#: - nothing: the declaration is already applied
#: - resume: it is applied, but the schedule was paused because no code declared it any more; resume it
#: - update: write the declaration as a new revision
#: - drift: keep a person's edit, and do not apply the declaration
#: - conflict: do not apply it, because a newer live version of the code declares the schedule otherwise
Verdict = Literal["create", "nothing", "resume", "update", "drift", "conflict"]


class LiveDeclaration(Struct, frozen=True):
    """The declaration of a schedule by another live instance of the app."""

    #: Version of the code that the instance runs.
    version: str
    #: Digest of the definition that this code declares (`digest_of`).
    digest: str


def judge_declaration(
    existing: Schedule | None,
    digest: str,
    version: str,
    live: tuple[LiveDeclaration, ...],
    on_drift: Literal["keep", "code"],
) -> Verdict:
    """Return what to do when code of version `version` declares a schedule with the definition digest `digest`.

    `existing` is the stored schedule, None if there is none. Its `digest` is that of the declaration applied last: an
    edit by a person changes the definition, but not this digest. `on_drift` decides whether such an edit stays ("keep")
    or the declaration replaces it ("code"). `live` are the declarations of this schedule by other live instances. If
    one of a newer version differs, this declaration is not applied: else two versions that run side by side during a
    redeploy would overwrite each other.
    """
    if existing is None:
        return "create"
    if existing.digest == digest:
        return _judge_unchanged(existing, on_drift)
    if any(other.digest != digest and version_key(other.version) > version_key(version) for other in live):
        return "conflict"
    return "drift" if existing.drifted and on_drift == "keep" else "update"


def _judge_unchanged(existing: Schedule, on_drift: Literal["keep", "code"]) -> Verdict:
    """Return the verdict for a declaration equal to the one applied last."""
    if existing.drifted and on_drift == "code":
        return "update"
    return "resume" if existing.state == "paused" and existing.reason == "not_declared" else "nothing"


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for version texts, compared part by part as numbers or letters: 1.10 comes after 1.9.

    Letters come before numbers, so 2.0rc comes before 2.0.1 (but after 2.0). The empty version comes first.
    """
    parts = re.findall(r"\d+|[a-zA-Z]+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
