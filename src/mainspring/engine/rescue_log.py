"""The line in the log about a run whose worker stopped renewing its lease."""

from __future__ import annotations

import logging

from mainspring.engine.run_logger import RunLogger
from mainspring.model.run import Run, State


def log_rescue(logger: RunLogger, run: Run, state: State) -> None:
    """Log that the lease of `run` ended, and that the run is now in `state`: an error if the run ended unfinished.

    `run` is the run before that, so this crash is not yet in its number of crashes.
    """
    level, rest = logging.WARNING, ""
    if state is State.FAILED:
        crashes = run.crashes + 1
        level = logging.ERROR
        rest = f" after {crashes} crash{'' if crashes == 1 else 'es'}, as many as max_crashes allows"
    elif state is State.LOST:
        level, rest = logging.ERROR, ", because of recovery='fail'"
    if level == logging.ERROR:
        rest += f"; run it again with ms.retry({run.id!r})"
    text = "had worker %s, which stopped renewing its lease; the run is now %s%s"
    logger.write(level, run, text, run.owner, state, rest)
