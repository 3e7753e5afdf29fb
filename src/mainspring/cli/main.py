"""`mainspring`: the command line. A sub-command is imported when it is called, so that `--help` is fast."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from mainspring.model.errors import InvalidInput, MainspringError, suggest_nearest

#: Module and help text of each sub-command.
COMMANDS = {
    "broker": ("mainspring.cli.broker", "Look at a broker and its dead letters; replay or discard them."),
    "config": ("mainspring.cli.config", "Show and check the configuration of the service."),
    "copy": ("mainspring.cli.copy", "Copy everything in one store to another, and compare them."),
    "cron": ("mainspring.cli.cron", "Explain, preview and check cron expressions."),
    "events": ("mainspring.cli.events", "List the event log, and check every row against it."),
    "key": ("mainspring.cli.key", "Create, list and revoke API keys of the service."),
    "ledger": ("mainspring.cli.ledger", "Account for every planned fire."),
    "migrate": ("mainspring.cli.migrate", "Bring the schema of a PostgreSQL store up to date."),
    "run": ("mainspring.cli.run", "Run an application: plan its schedules and execute its runs."),
    "serve": ("mainspring.cli.serve", "Serve the API, plan schedules and execute runs, in one process."),
    "worker": ("mainspring.cli.worker", "Execute the runs of an application, in one process or several."),
    "workers": ("mainspring.cli.workers", "List the instances: load, version, last heartbeat."),
}


class LazyGroup(click.Group):
    """Group that imports a command when it is called, and reports an error as one line and an exit code.

    The exit code is 2 for a wrong value and 1 for every other error of Mainspring.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = suggest_nearest(args[0], COMMANDS) or f"There are {', '.join(sorted(COMMANDS))}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MainspringError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2 if isinstance(error, InvalidInput) else 1)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"mainspring {version('mainspring')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def mainspring() -> None:
    """A task scheduler that runs each task on time and once, and can prove it."""


def main() -> None:
    """Entry point of the installed script."""
    mainspring(prog_name="mainspring")


if __name__ == "__main__":
    main()
