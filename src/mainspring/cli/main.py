"""`mainspring`: the command line. The module of a sub-command is imported when the sub-command is called.

Why: `mainspring --help` and `--version` stay fast, because they import no sub-command.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from mainspring.model.errors import InvalidInput, MainspringError, suggest_nearest

#: Name of a sub-command → its module, which holds a click command of this name, and its line in `mainspring --help`.
COMMANDS = {
    "broker": ("mainspring.cli.broker", "Inspect a broker and its dead letters; replay or discard them."),
    "config": ("mainspring.cli.config", "Show and check the configuration of the service."),
    "copy": ("mainspring.cli.copy", "Copy everything in one store to another, and compare them."),
    "cron": ("mainspring.cli.cron", "Explain, preview and check cron expressions."),
    "events": ("mainspring.cli.events", "List the event log, and check every row against it."),
    "key": ("mainspring.cli.key", "Create, list and revoke API keys of the service."),
    "ledger": ("mainspring.cli.ledger", "Account for every planned fire."),
    "migrate": ("mainspring.cli.migrate", "Bring the schema of a PostgreSQL store up to date."),
    "run": ("mainspring.cli.run", "Run an application: plan its schedules and execute its runs."),
    "runs": ("mainspring.cli.runs", "Show what a run did: its log."),
    "schedules": ("mainspring.cli.schedules", "Resume or rewind a schedule, or apply the code's definition."),
    "serve": ("mainspring.cli.serve", "Serve the API, plan schedules and execute runs, in one process."),
    "worker": ("mainspring.cli.worker", "Execute the runs of an application, in one process or several."),
    "workers": ("mainspring.cli.workers", "List the instances: load, version, last heartbeat."),
}


class LazyGroup(click.Group):
    """Group of sub-commands. It imports a sub-command when it is called, and prints a `MainspringError` as one line.

    The exit code is 2 after an `InvalidInput`, which means a wrong value, and 1 after any other `MainspringError`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all sub-commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the sub-command `cmd_name` and return it; None if there is no such sub-command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the sub-command in `args`, the sub-command, and its arguments.

        Raises: click.UsageError, with the nearest name, if there is no such sub-command.
        """
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = suggest_nearest(args[0], COMMANDS) or f"There are {', '.join(sorted(COMMANDS))}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands for `--help`, from `COMMANDS`, so that no sub-command is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command. If it raises a `MainspringError`, print the error to standard error and exit.

        The exit code is 2 for an `InvalidInput`, else 1.
        """
        try:
            return super().invoke(ctx)
        except MainspringError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2 if isinstance(error, InvalidInput) else 1)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the installed version and exit if `asked`, which is True if `--version` was given. click calls this."""
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"mainspring {version('mainspring')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--config", "path", metavar="FILE", help="Configuration file of every command; alone: serve with it.")
@click.pass_context
def mainspring(ctx: click.Context, path: str | None) -> None:
    """A task scheduler that runs each task on time and once, and can prove it."""
    if path is not None:
        os.environ["MAINSPRING_CONFIG"] = path
    if ctx.invoked_subcommand is None and path is None:
        click.echo(ctx.get_help())
    elif ctx.invoked_subcommand is None:
        from mainspring.cli.serve import serve

        ctx.invoke(serve)


def main() -> None:
    """Run the command line. This is the entry point of the installed script `mainspring`."""
    mainspring(prog_name="mainspring")


if __name__ == "__main__":
    main()
