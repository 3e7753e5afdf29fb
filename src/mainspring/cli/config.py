"""`mainspring config`: show the settings of the service and where each comes from, and check a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.common import print_json
from mainspring.cli.program import read_configuration, with_program_store

if TYPE_CHECKING:
    from mainspring.config.resolve import Resolved


@click.group()
def config() -> None:
    """Show and check the configuration of `mainspring serve`."""


@config.command()
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help="Configuration file; default: the one in this directory."
)
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: Path | None, origin: bool, as_json: bool) -> None:
    """Show every setting with its value; passwords in URLs are replaced by ***.

    `mainspring serve` takes a setting from the first of these that has it: its flag, environment variable, .env,
    configuration file, default. Flags are not known here. If the configuration names a program (`app:`) and no store,
    the store is the program's.
    """
    from mainspring.config.redaction import format_all

    resolved = with_program_store(read_configuration(path))
    values = format_all(resolved.settings)
    if as_json:
        rows: dict[str, Any] = {
            key: {"value": value, "origin": resolved.origins[key]} if origin else value for key, value in values.items()
        }
        print_json(rows)
        return
    key_width = max(map(len, values))
    value_width = max(map(len, values.values()))
    for key, value in values.items():
        line = f"{key:<{key_width}}  {value:<{value_width}}  {resolved.origins[key] if origin else ''}"
        click.echo(line.rstrip())
    _print_notes(resolved)


@config.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
def check(path: Path | None) -> None:
    """Check the configuration file PATH, by default the one in this directory; exit with 2 if it is wrong.

    Environment variables and the file .env are read and checked, too, as by `mainspring serve`.
    """
    resolved = read_configuration(path)
    _print_notes(resolved)
    from_file = sum(origin.startswith("file") for origin in resolved.origins.values())
    click.echo(f"ok: {resolved.file or 'no file'}, {from_file} settings")


def _print_notes(resolved: Resolved) -> None:
    for note in resolved.notes:
        click.echo(f"note: {note}", err=True)
