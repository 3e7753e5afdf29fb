"""`mainspring run MODULE:APP`: plan schedules and execute runs until a signal arrives."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from mainspring.app.internals import host_of
from mainspring.telemetry.log_format import LINE_FORMAT, TextFormatter

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

#: Python's thread switch interval: a busy handler thread delays the engine's thread by 0.5 ms, not by 5 ms.
SWITCH_INTERVAL_SECONDS = 0.0005


def broker_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--broker URL` to a command that runs an application; the command receives it as `broker`."""
    text = "Broker that carries hints; default: the application's own, then $MAINSPRING_BROKER, then none."
    return click.option("--broker", metavar="URL", help=text)(command)


@click.command()
@click.argument("target", metavar="MODULE:APP")
@broker_option
@click.option("--until-idle", is_flag=True, help="Stop when no run is due any more.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
def run(target: str, broker: str | None, until_idle: bool, log_level: str) -> None:
    """Plan schedules and run tasks of MODULE:APP until SIGTERM or Ctrl-C.

    At the first signal, the process claims no more runs and ends when its running ones have finished or its shutdown
    time-out is over. A second signal makes it hand its running ones back at once.
    """
    configure_log(log_level)
    app = load_app(target)
    host_of(app).configure(broker=broker or app.broker)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    log = logging.getLogger("mainspring")
    log.info("%s: %d tasks, %d schedules declared; Ctrl-C stops", app.url, len(app.tasks), len(app.declared))
    app.run(until_idle=until_idle)
    log.info("stopped cleanly")


def configure_log(log_level: str, line_format: str = LINE_FORMAT) -> None:
    """Send log lines of level `log_level` and above to standard error, in the `logging` format `line_format`.

    `log_level` is a name such as "info". Raises: click.UsageError for an unknown level.
    """
    level = logging.getLevelName(log_level.upper())
    if not isinstance(level, int):
        raise click.UsageError(f"--log-level: {log_level!r} is not a level. Use debug, info, warning or error.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(line_format))
    logging.basicConfig(level=level, handlers=[handler])


def load_app(target: str) -> Mainspring:
    """Import a module and return its `Mainspring` object. `target` is MODULE:APP; APP is the name of the object.

    `:APP` may be left out if the module holds only one such object. The working directory is put first on the Python
    path. Raises: click.UsageError if there is no such module or object.
    """
    from mainspring.app.mainspring import Mainspring
    from mainspring.model.errors import suggest_nearest

    module_name, colon, attribute = target.partition(":")
    if not module_name:
        raise click.UsageError(f"{target!r} names no module. Write MODULE:APP, for example app:ms.")
    sys.path.insert(0, os.getcwd())
    if module_name.endswith(".py"):
        raise click.UsageError(f"{target!r} is a file. Write the module: {Path(module_name).stem}:{attribute or 'ms'}")
    module = _import(module_name)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Mainspring)}
    if not colon:
        if len(apps) == 1:
            return next(iter(apps.values()))
        found = f"{len(apps)} apps ({', '.join(apps)})" if apps else "no Mainspring object"
        raise click.UsageError(f"module {module_name!r} holds {found}. Write {module_name}:NAME.")
    if attribute not in apps:
        hint = suggest_nearest(attribute, apps) or (f"It has: {', '.join(apps)}." if apps else "It has none.")
        raise click.UsageError(f"module {module_name!r} has no Mainspring object called {attribute!r}. {hint}")
    return apps[attribute]


def _import(module_name: str) -> ModuleType:
    """Import the module of a program without starting its app. Raises: click.UsageError if there is no such module.

    A program may end with `ms.run()`, which would start the app during the import. `LOADING_VARIABLE` is set in the
    environment meanwhile, and makes `ms.run()` return at once.
    """
    from mainspring.ports.executor import LOADING_VARIABLE

    os.environ[LOADING_VARIABLE] = "1"
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise click.UsageError(
            f"there is no module {error.name!r} here ({os.getcwd()}) or on the Python path."
        ) from None
    finally:
        del os.environ[LOADING_VARIABLE]
