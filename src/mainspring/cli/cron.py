"""`mainspring cron`: explain a cron expression, list its next fires, report likely mistakes. Needs no store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import click

from mainspring.model.errors import InvalidCron, InvalidInput
from mainspring.model.instant import Ms, instant_ms, isoformat, load_zone, to_datetime
from mainspring.model.plural import plural
from mainspring.rules.triggers import Cron, Finding
from mainspring.rules.triggers.base import LAST_MS

_YEAR_MS: Ms = 365 * 86_400_000
#: Exit code of `lint` if it finds a likely mistake, and exit code of every command for a wrong expression or time.
FINDINGS_EXIT_CODE = 7
USAGE_EXIT_CODE = 2


def now_ms() -> Ms:
    """Return the present time of this machine, from which fires are listed if the option `--from` is not given."""
    from mainspring.ports.clock import SystemClock

    return SystemClock().now()


@click.group()
def cron() -> None:
    """Explain, preview and check cron expressions."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--json`, `--name` and `--tz` to a command, which receives them as `as_json`, `name` and `tz`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--name", help="Name of the schedule, from which H is derived."),
        click.option(
            "--tz", "--zone", "tz", metavar="ZONE", help="Time zone, for example Europe/Berlin; default: UTC."
        ),
    ):
        command = option(command)
    return command


_from = click.option("--from", "start", metavar="TIME", help="Count from this ISO 8601 time; default: now.")


@cron.command("next")
@click.argument("expression", metavar="EXPR")
@_options
@_from
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Number of fires.")
def next_command(
    expression: str, tz: str | None, name: str | None, as_json: bool, start: str | None, count: int
) -> None:
    """Print the next fires of EXPR, in local time and UTC.

    Example: mainspring cron next "0 9 * * 1-5" --tz Europe/Berlin -n 3
    """
    trigger, after = _parse(expression, tz, name), _parse_from(start)
    fires = trigger.fires_ms(after, LAST_MS, count)
    local = [_local_time(ms, trigger) for ms in fires]
    if as_json:
        return _print_json({"expression": expression, "tz": trigger.spec.tz, "from": isoformat(after), "fires": local})
    if not fires:
        return click.echo(f"{expression!r} never fires after {isoformat(after)}")
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("day", "local time", "UTC"):
        table.add_column(column, no_wrap=True)
    for ms, text in zip(fires, local, strict=True):
        table.add_row(f"{to_datetime(ms, load_zone(trigger.spec.tz)):%a}", text, isoformat(ms))
    Console(highlight=False, soft_wrap=True).print(table)
    return None


@cron.command()
@click.argument("expression", metavar="EXPR")
@_options
@_from
def explain(expression: str, tz: str | None, name: str | None, as_json: bool, start: str | None) -> None:
    """Describe EXPR in words, with its next fires, the number of fires per year, and likely mistakes in it.

    Example: mainspring cron explain "0 9 1 * 1"
    """
    trigger, after = _parse(expression, tz, name), _parse_from(start)
    fires = trigger.fires_ms(after, LAST_MS, 3)
    per_year = trigger.count_ms(after, after + _YEAR_MS)
    findings = trigger.lint(zone_given=True, around=to_datetime(after))
    if as_json:
        return _print_json(
            {
                "expression": expression,
                "tz": trigger.spec.tz,
                "from": isoformat(after),
                "description": trigger.describe(),
                "next": [_local_time(ms, trigger) for ms in fires],
                "fires_per_year": per_year,
                "findings": _findings_as_dicts(findings),
            }
        )
    click.echo(trigger.describe())
    if fires:
        info = load_zone(trigger.spec.tz)
        shown = " · ".join(f"{to_datetime(ms, info):%a %Y-%m-%d %H:%M:%S}".removesuffix(":00") for ms in fires)
        click.echo(f"  next  {shown}{' …' if len(fires) == 3 else ''}  ≈ {plural(per_year, 'fire')}/year")
    else:
        click.echo("  never fires")
    _print_findings(findings)
    return None


@cron.command()
@click.argument("expressions", metavar="EXPR...", nargs=-1, required=True)
@_options
@click.pass_context
def lint(context: click.Context, expressions: tuple[str, ...], tz: str | None, name: str | None, as_json: bool) -> None:
    """Check expressions for likely mistakes, such as a time that a clock change skips; exit with 7 if there is one.

    Example: mainspring cron lint "30 2 * * *" --tz America/New_York
    """
    triggers = [_parse(expression, tz, name) for expression in expressions]
    around = to_datetime(now_ms())
    results = [(trigger, trigger.lint(zone_given=tz is not None, around=around)) for trigger in triggers]
    if as_json:
        _print_json(
            [
                {"expression": trigger.spec.expr, "tz": trigger.spec.tz, "findings": _findings_as_dicts(findings)}
                for trigger, findings in results
            ]
        )
    else:
        for trigger, findings in results:
            click.echo(f"{trigger.spec.expr}  ({trigger.spec.tz}){'' if findings else '  ok'}")
            _print_findings(findings)
    context.exit(FINDINGS_EXIT_CODE if any(findings for _, findings in results) else 0)


def _parse(expression: str, tz: str | None, name: str | None) -> Cron:
    """Return the trigger of a cron expression in the time zone `tz`; None: UTC.

    If the expression or the zone is wrong, print the error and exit with 2. `name` is the name from which the values of
    `H` are derived; None: an expression with `H` is wrong.
    """
    try:
        return Cron(expression, tz, hash_id=name)
    except InvalidInput as error:
        _refuse(error)


def _parse_from(start: str | None) -> Ms:
    """Return the instant in `start`, the value of the option `--from`; None: the present time.

    If the text is not an instant, print the error and exit with 2.
    """
    if start is None:
        return now_ms()
    try:
        return instant_ms(start, field="--from")
    except InvalidInput as error:
        _refuse(error)


def _refuse(error: InvalidInput) -> NoReturn:
    """Print an error and exit with 2. Below a wrong cron expression, ^ points to the wrong character."""
    text = f"error: {error}"
    if "hash_id=" in error.fix:  # the parameter of Python programs
        text = text.replace(error.fix, "Give --name, the name of the schedule")
    click.echo(text, err=True)
    if isinstance(error, InvalidCron):
        shown = "".join(char if char.isprintable() else "?" for char in error.expression)
        click.echo(f"  {shown}\n  {' ' * error.position}^", err=True)
    raise click.exceptions.Exit(USAGE_EXIT_CODE)


def _local_time(ms: Ms, trigger: Cron) -> str:
    """Return the instant `ms` as ISO 8601 text in the time zone of a trigger."""
    return to_datetime(ms, load_zone(trigger.spec.tz)).isoformat(timespec="seconds")


def _findings_as_dicts(findings: list[Finding]) -> list[dict[str, str]]:
    return [{"code": finding.code, "message": finding.message} for finding in findings]


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"  ⚠ {finding.code} {finding.message}")


def _print_json(value: Any) -> None:
    """Print a value to standard output as indented JSON.

    Why not `cli.common.print_json`: importing that module would slow down the start of `mainspring cron`.
    """
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
