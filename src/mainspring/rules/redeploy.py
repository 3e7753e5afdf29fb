"""Redeploys: decide what happens to a schedule that code declares, when another version of the code starts."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from mainspring.model.schedule import Schedule

#: What to do with a declaration of a schedule by code:
#: - create: create the schedule, because it does not exist
#: - nothing: do nothing, because the declaration is applied already
#: - resume: resume the schedule; the declaration is applied, but the schedule was paused while no code declared it
#: - update: write the declaration as a new revision of the schedule
#: - drift: do not apply the declaration, so that a person's edit stays
#: - conflict: do not apply the declaration, because a newer live version of the code declares the schedule otherwise
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
    """Return what to do when code of version `version` declares a schedule whose definition has the digest `digest`.

    `existing` is the stored schedule, None if there is none. Its column `digest` belongs to the declaration that was
    applied last: an edit by a person changes the definition, but not this digest. `on_drift` decides whether such an
    edit stays ("keep") or the declaration replaces it ("code"). `live` are the declarations of this schedule by other
    live instances. If a declaration of a newer version differs, the verdict is "conflict": else two versions that run
    side by side during a redeploy would overwrite each other's definition.
    """
    if existing is None:
        return "create"
    if existing.digest == digest:
        return _judge_unchanged(existing, on_drift)
    if any(other.digest != digest and version_key(other.version) > version_key(version) for other in live):
        return "conflict"
    return "drift" if existing.drifted and on_drift == "keep" else "update"


def _judge_unchanged(existing: Schedule, on_drift: Literal["keep", "code"]) -> Verdict:
    """Return the verdict for a declaration that equals the declaration applied last.

    `on_drift`: a person's edit since then stays ("keep"), or the declaration replaces it ("code").
    """
    if existing.drifted and on_drift == "code":
        return "update"
    return "resume" if existing.state == "paused" and existing.reason == "not_declared" else "nothing"


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for version texts, compared part by part as numbers or letters: 1.10 comes after 1.9.

    Letters come before numbers, so 2.0rc comes before 2.0.1 (but after 2.0). The empty version comes first.
    """
    parts = re.findall(r"\d+|[a-zA-Z]+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
