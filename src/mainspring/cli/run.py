"""`mainspring run MODULE:APP`: plan schedules and execute runs until a signal arrives."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mainspring.cli.program import load_configured, program_options, read_configuration
from mainspring.config.redaction import show_store
from mainspring.model.errors import MissingExtra
from mainspring.model.plural import plural
from mainspring.telemetry.log_format import configure_logging

#: Python's thread switch interval: a busy handler thread delays the engine's thread by 0.5 ms, not by 5 ms.
SWITCH_INTERVAL_SECONDS = 0.0005
#: After a change of the code, the old process has this time to finish its runs.
RELOAD_SHUTDOWN_SECONDS = 30


@click.command()
@program_options
@click.option("--until-idle", is_flag=True, help="Stop when no run is due any more.")
@click.option("--reload", is_flag=True, help="Start anew whenever a Python file in this directory changes.")
def run(
    target: str | None,
    store: str | None,
    broker: str | None,
    path: Path | None,
    log_level: str | None,
    until_idle: bool,
    reload: bool,
) -> None:
    """Plan schedules and run tasks of MODULE:APP until SIGTERM or Ctrl-C.

    At the first signal, the process claims no more runs and ends when its running ones have finished or its shutdown
    time-out is over. A second signal makes it hand its running ones back at once.

    Settings come from options, environment variables, the file .env and a configuration file, as for `mainspring
    serve`; what none of them gives, the program decides. The configuration may name the program, too (`app:`).
    """
    resolved = read_configuration(path, {"store": store, "broker": broker, "logging.level": log_level})
    configure_logging(resolved.settings.logging.level, resolved.settings.logging.format)
    if reload:
        _run_and_reload([word for word in sys.argv[1:] if word != "--reload"])
        return
    app = load_configured(target, resolved)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    log = logging.getLogger("mainspring")
    tasks, schedules = plural(len(app.tasks), "task"), plural(len(app.declared), "schedule")
    log.info("%s: %s, %s declared; Ctrl-C stops", show_store(app.url), tasks, schedules)
    app.run(until_idle=until_idle)
    log.info("stopped cleanly")


def _run_and_reload(words: Sequence[str]) -> None:
    """Run `mainspring` with the arguments `words` in a child process, and start it anew when a Python file changes.

    The child gets SIGINT first, so that its runs may finish. Raises: MissingExtra if watchfiles is not installed.
    """
    try:
        from watchfiles import PythonFilter, run_process
    except ModuleNotFoundError as error:
        raise MissingExtra("--reload needs watchfiles. Install it: pip install 'mainspring[serve]'") from error
    command = shlex.join([sys.executable, "-m", "mainspring.cli.main", *words])

    def log_change(changes: set[tuple[Any, str]]) -> None:
        names = ", ".join(sorted({name for _, name in changes}))
        logging.getLogger("mainspring").info("%s changed; starting anew", names)

    run_process(
        Path.cwd(),
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        callback=log_change,
        sigint_timeout=RELOAD_SHUTDOWN_SECONDS,
    )
