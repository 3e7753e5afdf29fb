"""`mainspring serve`: the API, a status page, planning and work in one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from mainspring.cli.run import SWITCH_INTERVAL, load
from mainspring.config.settings import SERVE_ROLES
from mainspring.model.errors import MissingExtra


@click.command()
@click.option("--store", metavar="URL", help="Where everything is kept; else $MAINSPRING_URL, then ./mainspring.db.")
@click.option("--broker", metavar="URL", help="How hints travel between instances; else $MAINSPRING_BROKER, then none.")
@click.option("--host", metavar="ADDRESS", help="Where to listen; 127.0.0.1 unless told otherwise.")
@click.option("--port", metavar="PORT", help="Default: 3000. 0 takes a free one.")
@click.option("--role", type=click.Choice(SERVE_ROLES), help="What this process does; all of it unless told otherwise.")
@click.option("--app", "program", metavar="MODULE:APP", help="A program with tasks and schedules of its own.")
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="YAML or TOML; see `mainspring config show`."
)
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--insecure-no-auth", is_flag=True, help="Let anybody who reaches it do anything. Not for a network you share."
)
def serve(
    store: str | None,
    broker: str | None,
    host: str | None,
    port: str | None,
    role: str | None,
    program: str | None,
    config_path: Path | None,
    log_level: str | None,
    insecure_no_auth: bool,
) -> None:
    """Serve the API and run schedules until SIGTERM or Ctrl-C.

    On 127.0.0.1 this machine needs no key. Any other address needs one: `mainspring key create NAME`. SIGHUP and a
    change of the file read the configuration again.
    """
    from mainspring.config.resolve import Sources, resolve
    from mainspring.telemetry.lines import begin_lines

    given: dict[str, Any] = {
        "store": store,
        "broker": broker,
        "server.host": host,
        "server.port": port,
        "role": role,
        "app": program,
        "logging.level": log_level,
        "server.insecure_no_auth": insecure_no_auth or None,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    sources = Sources(flags=flags, variables=dict(os.environ), folder=Path.cwd(), config=config_path)
    resolved = resolve(sources)
    begin_lines(resolved.settings.logging.level, resolved.settings.logging.format)
    try:
        from mainspring.serving import make_app, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mainspring":
            raise
        raise MissingExtra(f"serve needs {error.name}. Install it: pip install 'mainspring[serve]'") from error

    sys.setswitchinterval(SWITCH_INTERVAL)
    app = make_app(resolved, None if resolved.settings.app is None else load(resolved.settings.app))
    run(app, sources, resolved, click.echo)
