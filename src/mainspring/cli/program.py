"""Helpers of commands that use a Python program, or the store of one: their options, the configuration, the import."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from mainspring.model.errors import MainspringError, suggest_nearest

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring
    from mainspring.config.resolve import Resolved


def program_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument MODULE:APP and the options that `run` and `worker` share to a command.

    The command receives `target`, `store`, `broker`, `path` and `log_level`; None for what is not given.
    """
    where = "default: the configured one, then the program's"
    for option in (
        click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error; default: info."),
        config_option,
        click.option("--broker", metavar="URL", help=f"Redis that wakes workers at once; {where}."),
        click.option("--store", metavar="URL", help=f"URL of the store; {where}."),
        click.argument("target", metavar="MODULE:APP", required=False),
    ):
        command = option(command)
    return command


def config_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--config FILE` to a command, which receives it as `path`."""
    text = "YAML or TOML file; default: $MAINSPRING_CONFIG, then mainspring.yaml or .toml in this directory."
    return click.option("--config", "path", type=click.Path(path_type=Path), help=text)(command)


def read_configuration(path: Path | None, flags: Mapping[str, Any] | None = None) -> Resolved:
    """Return the settings of flags, environment, `.env` and configuration file.

    `flags`: configuration key → value; None if the option was not given. Raises: InvalidInput, which names the source
    of a wrong value.
    """
    from mainspring.config.resolve import Sources, resolve

    given = {key: value for key, value in (flags or {}).items() if value is not None}
    return resolve(Sources(flags=given, variables=dict(os.environ), config=path))


def find_store_url(path: Path | None = None, url: str | None = None, program: str | None = None) -> str:
    """Return the URL of the store that `serve` and `run` use: of --store, configuration, program and default.

    `url`: the value of --store. `program`: MODULE:APP of --app; None: the program that the configuration names.
    """
    return with_program_store(read_configuration(path, {"store": url, "app": program})).settings.store


def find_namespace(path: Path | None = None, namespace: str | None = None, program: str | None = None) -> str:
    """Return the namespace that `serve` uses: of --namespace, else of the program, else of the configuration.

    `program`: MODULE:APP of --app; None: the program that the configuration names.
    """
    settings = read_configuration(path, {"scheduler.namespace": namespace, "app": program}).settings
    if namespace is not None or settings.app is None:
        return settings.scheduler.namespace
    return load_configured(settings.app, read_configuration(path, {"app": program})).settings.namespace


def with_program_store(resolved: Resolved) -> Resolved:
    """Return the settings with the store of the program that they name, if they name one and no store is configured.

    Why: `serve` with a program and no configured store uses the program's.
    """
    from mainspring.config.resolve import DEFAULT_ORIGIN

    target = resolved.settings.app
    if resolved.origins["store"] != DEFAULT_ORIGIN or target is None:
        return resolved
    settings = replace(resolved.settings, store=load_app(target).url)
    return replace(resolved, settings=settings, origins={**resolved.origins, "store": f"program {target}"})


def load_configured(target: str | None, resolved: Resolved) -> Mainspring:
    """Import the program `target`, else the one that the configuration names, and let configured settings replace its.

    Raises: click.UsageError if neither names one; InvalidInput if a setting does not fit the program.
    """
    from mainspring.app.configuration import configure_program

    target = target or resolved.settings.app
    if target is None:
        raise click.UsageError("Missing argument MODULE:APP, for example app:ms; or set `app:` in the configuration.")
    app = load_app(target)
    configure_program(app, resolved)
    return app


def load_app(target: str) -> Mainspring:
    """Import a module and return its `Mainspring` object. `target` is MODULE:APP; APP is the name of the object.

    `:APP` may be left out if the module holds only one such object. The working directory is put first on the Python
    path. Raises: click.UsageError if there is no such module or object; ProgramFails if the import raises an error.
    """
    from mainspring.app.mainspring import Mainspring

    module_name, colon, attribute = target.partition(":")
    if not module_name:
        raise click.UsageError(f"{target!r} names no module. Write MODULE:APP, for example app:ms.")
    if os.getcwd() not in sys.path:
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


class ProgramFails(MainspringError):
    """Raised if the import of a program raises an error; the text has the traceback of the program's own lines."""


def _import(module_name: str) -> ModuleType:
    """Import the module of a program without starting its app.

    A program may end with `ms.run()`, which would start the app during the import. `LOADING_VARIABLE` is set in the
    environment meanwhile, and makes `ms.run()` return at once. Raises: click.UsageError if there is no such module;
    ProgramFails for an error in the program.
    """
    from mainspring.ports.executor import LOADING_VARIABLE

    os.environ[LOADING_VARIABLE] = "1"
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise _program_error(module_name, error) from error
        raise click.UsageError(
            f"there is no module {error.name!r} here ({os.getcwd()}) or on the Python path."
        ) from None
    except Exception as error:
        raise _program_error(module_name, error) from error
    finally:
        del os.environ[LOADING_VARIABLE]


def _program_error(module_name: str, error: Exception) -> ProgramFails:
    """Return an error with the traceback from the first line of the program on, without the frames of the import."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    lines = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
    return ProgramFails(f"the program {module_name!r} cannot be imported:\n{lines}")
