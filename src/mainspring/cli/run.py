"""`mainspring run module:app`: plan and work until told to stop."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mainspring.app import Mainspring

#: A busy handler thread gives the engine's thread its turn after half a millisecond, not five.
SWITCH_INTERVAL = 0.0005


def broker_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--broker URL`."""
    said = "How hints of work travel; else what the application says, then $MAINSPRING_BROKER, then none."
    return click.option("--broker", metavar="URL", help=said)(command)


@click.command()
@click.argument("target", metavar="MODULE:APP")
@broker_option
@click.option("--until-idle", is_flag=True, help="Stop when nothing is due any more.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
def run(target: str, broker: str | None, until_idle: bool, log_level: str) -> None:
    """Plan schedules and run tasks of MODULE:APP until SIGTERM or Ctrl-C.

    The first signal stops taking work and lets what runs finish; the second hands everything back at once.
    """
    begin_logging(log_level)
    app = load(target)
    app.use_broker(broker)
    sys.setswitchinterval(SWITCH_INTERVAL)
    log = logging.getLogger("mainspring")
    log.info("%s: %d tasks, %d schedules declared; Ctrl-C stops", app.url, len(app.tasks), len(app.declared))
    app.run(until_idle=until_idle)
    log.info("stopped in order")


def begin_logging(log_level: str, words: str = "%(asctime)s %(levelname)-7s %(name)s: %(message)s") -> None:
    """Log lines of a level and above, to standard error."""
    level = logging.getLevelName(log_level.upper())
    if not isinstance(level, int):
        raise click.UsageError(f"--log-level: {log_level!r} is not a level. Use debug, info, warning or error.")
    logging.basicConfig(level=level, format=words, stream=sys.stderr)


def load(target: str) -> Mainspring:
    """The app a target names; an error says what was found instead."""
    from mainspring.app import Mainspring
    from mainspring.model.errors import nearest
    from mainspring.ports.executor import LOADING

    module_name, colon, attribute = target.partition(":")
    if not module_name:
        raise click.UsageError(f"{target!r} names no module. Write MODULE:APP, for example app:ms.")
    sys.path.insert(0, os.getcwd())
    if module_name.endswith(".py"):
        raise click.UsageError(f"{target!r} is a file. Write the module: {Path(module_name).stem}:{attribute or 'ms'}")
    os.environ[LOADING] = "1"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise click.UsageError(
            f"there is no module {error.name!r} here ({os.getcwd()}) or on the Python path."
        ) from None
    finally:
        del os.environ[LOADING]
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Mainspring)}
    if not colon:
        if len(apps) == 1:
            return next(iter(apps.values()))
        said = f"{len(apps)} apps ({', '.join(apps)})" if apps else "no Mainspring object"
        raise click.UsageError(f"module {module_name!r} holds {said}. Write {module_name}:NAME.")
    if attribute not in apps:
        hint = nearest(attribute, apps) or (f"It has: {', '.join(apps)}." if apps else "It has none.")
        raise click.UsageError(f"module {module_name!r} has no Mainspring object called {attribute!r}. {hint}")
    return apps[attribute]
