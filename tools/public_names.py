"""Import mainspring and print every public name, one per line and sorted: the names that a refactoring must keep.

    python tools/public_names.py > names.txt                # of the mainspring that Python finds; --src DIR: another
    python tools/public_names.py --compare [names.txt]      # exit code 1 if a line of the file is missing now

Printed are the exports of `mainspring` and of the public modules of `testing` and `compat`, commands with options,
routes with parameters and fields, keys of the configuration, and the methods of the objects that programs hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

SAVED = Path(__file__).parents[1] / "tests" / "fixtures" / "public_names.txt"


#: The modules of `testing` and `compat` that documents name; others are parts of these.
PUBLIC_MODULES = (
    "mainspring.testing",
    "mainspring.testing.broker_contract",
    "mainspring.testing.contract",
    "mainspring.testing.history",
    "mainspring.compat.handlers",
    "mainspring.compat.jobs",
    "mainspring.compat.scheduler",
)


def exports(module: str) -> Iterator[str]:
    """Yield what a module lists in `__all__`; without one, the classes and functions that it defines."""
    loaded = import_module(module)
    defined = [name for name, one in vars(loaded).items() if getattr(one, "__module__", "") == module]
    contract = module.endswith("_contract")  # its helpers are no door for users
    for name in getattr(loaded, "__all__", defined):
        if not name.startswith("_") and (not contract or name.endswith("Contract")):
            yield f"export {module}.{name}"


def commands(command: click.Command, words: str) -> Iterator[str]:
    """Yield a command with its options and arguments, then its subcommands with theirs."""
    context = click.Context(command)
    yield f"command {words}"
    for one in command.params:
        names = "/".join([*one.opts, *one.secondary_opts])
        kind = "flag" if getattr(one, "is_flag", False) else one.type.name
        facts = [kind, *(["required"] if one.required else []), *(["many"] if one.multiple or one.nargs != 1 else [])]
        yield f"command {words} {one.param_type_name} {names} ({', '.join(facts)})"
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name) if isinstance(command, click.Group) else None
        if below is not None:
            yield from commands(below, f"{words} {name}")


def routes(app: Any) -> Iterator[str]:
    """Yield the routes of the API as an app serves them, and what its own OpenAPI document says of each."""
    for route in app.routes:
        for method in sorted(route.methods - {"HEAD"}):
            yield f"route {method} {route.path}"
    (described,) = [route for route in app.routes if route.path.endswith("openapi.json")]
    from starlette.requests import Request

    scope = {"type": "http", "method": "GET", "path": described.path, "query_string": b"", "headers": [], "app": app}
    document = json.loads(asyncio.run(described.endpoint(Request(scope))).body)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"route {method.upper()} {path} operation {operation['operationId']}"
            for one in operation.get("parameters", ()):
                yield f"route {method.upper()} {path} {one['in']} parameter {one['name']}"
    for name, schema in document["components"]["schemas"].items():
        yield from (f"route schema {name}.{one}" for one in schema.get("properties", ()))


def members(kind: type, name: str, instance: object = None) -> Iterator[str]:
    """Yield the methods with signatures and the other members of a class, and what an instance holds besides."""
    for member in dir(kind if instance is None else instance):
        if member.startswith("_"):
            continue
        value = inspect.getattr_static(kind, member, None)
        value = getattr(value, "__func__", value)
        if inspect.isfunction(value):
            mark = "async " if asyncio.iscoroutinefunction(value) else ""
            text = re.sub(r" at 0x\w+|\bmainspring\.(?:\w+\.)*", "", str(inspect.signature(value)))
            yield f"member {name}.{member}: {mark}{text}"
        else:
            yield f"member {name}.{member}"


def first_module(package: str, *names: str) -> Any:
    """Import the first of some modules that exists: a moved module is looked for at its new and its old place."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(f"{package}.{name}")
    raise SystemExit(f"{package} has none of the modules {', '.join(names)}")


def public_names() -> list[str]:
    """Collect everything from the mainspring that can be imported."""
    import mainspring
    from mainspring.api.app import build
    from mainspring.cli.main import mainspring as command

    ms = mainspring.Mainspring("memory://")
    task = ms.task(differences)
    keys = first_module("mainspring.config", "schema", "keys")
    lines = [f"export mainspring.{name}" for name in mainspring.__all__]
    for module in PUBLIC_MODULES:
        lines += exports(module)
    lines += commands(command, "mainspring")
    lines += routes(build(ms))
    lines += [f"key {name}" for name in keys.KEYS]
    lines += [f"key alias {name}" for name in (*keys.ALIASES, *keys.VARIABLES)]
    lines += [*members(type(ms), "Mainspring", ms), *members(type(task), "Task", task)]
    lines += [*members(mainspring.Context, "Context"), *members(mainspring.RunHandle, "RunHandle")]
    return sorted(set(lines))


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """List lines that are missing now, then new ones, marked `-` and `+`."""
    old, new = set(before), set(now)
    return [f"- {one}" for one in sorted(old - new)] + [f"+ {one}" for one in sorted(new - old)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, help="the folder `mainspring` to import")
    parser.add_argument("--compare", nargs="?", type=Path, const=SAVED, help="a file of names, else the saved one")
    options = parser.parse_args(arguments)
    if options.src is not None:
        sys.path.insert(0, str(options.src.resolve().parent))
    lines = public_names()
    if options.compare is not None:
        lines = differences(options.compare.read_text(encoding="utf-8").splitlines(), lines)
    print("\n".join(lines) or "no difference")
    return 1 if options.compare is not None and any(line.startswith("- ") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
