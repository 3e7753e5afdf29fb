"""`mainspring serve`: serve the API and a status page, plan schedules and execute runs, in one process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from mainspring.cli.program import load_app
from mainspring.cli.run import SWITCH_INTERVAL_SECONDS
from mainspring.config.settings import SERVE_ROLES
from mainspring.model.errors import MissingExtra


@click.command()
@click.option(
    "--store", metavar="URL", help="URL of the store; default: $MAINSPRING_URL, then sqlite:///mainspring.db."
)
@click.option(
    "--broker",
    metavar="URL",
    help="Redis that wakes workers at once instead of at the next poll; default: $MAINSPRING_BROKER, then none.",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on; default: 127.0.0.1.")
@click.option("--port", metavar="PORT", help="Port to listen on; default: 3000. 0 takes a free one.")
@click.option("--role", type=click.Choice(SERVE_ROLES), help="What this process does; default: all.")
@click.option("--app", "program", metavar="MODULE:APP", help="Python program with tasks and schedules.")
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="YAML or TOML file; see `mainspring config show`."
)
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--insecure-no-auth", is_flag=True, help="Let any caller do anything, without a key. Not for a shared network."
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

    On 127.0.0.1 callers on this machine need no API key. On any other address every caller needs one: `mainspring key
    create NAME`.

    The configuration is read again at SIGHUP, and when its file changes.
    """
    from mainspring.config.resolve import Sources, resolve
    from mainspring.telemetry.log_format import configure_logging

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
    configure_logging(resolved.settings.logging.level, resolved.settings.logging.format)
    try:
        from mainspring.server.serve import make_app, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mainspring":
            raise
        raise MissingExtra(f"serve needs {error.name}. Install it: pip install 'mainspring[serve]'") from error

    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    app = make_app(resolved, None if resolved.settings.app is None else load_app(resolved.settings.app))
    is_json = resolved.settings.logging.format == "json"  # then every line of the output is a record
    run(app, sources, resolved, logging.getLogger("mainspring").info if is_json else click.echo)
