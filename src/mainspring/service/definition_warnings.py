"""Definition warnings: log the probable mistakes in a definition when code or a caller gives it."""

from __future__ import annotations

import logging

from mainspring.model.instant import Ms
from mainspring.rules.definition_lint import lint_definition
from mainspring.service.requests import ScheduleRequest

log = logging.getLogger("mainspring")


def warn_of_mistakes(want: ScheduleRequest, now: Ms) -> None:
    """Log a warning for each probable mistake in a definition that is in force from `now` on.

    Nothing is logged for an interface with the names of another scheduler, which says nothing either.
    """
    if want.any_name or want.delay is not None:
        return
    for finding in lint_definition(want.spec, now):
        log.warning("schedule %r: %s: %s", want.name, finding.code, finding.message)
