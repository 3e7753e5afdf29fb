"""`mainspring broker`: is it there, what does it hold, and the messages that nobody could read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import msgspec

from mainspring.cli.common import print_json
from mainspring.model.errors import InvalidInput
from mainspring.model.instant import isoformat
from mainspring.ports.broker import Broker, DeadLetter
from mainspring.ports.clock import SystemClock

T = TypeVar("T")
PAGE = 500


def broker_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--broker URL`."""
    return click.option("--broker", "url", metavar="URL", help="The broker; else $MAINSPRING_BROKER.")(command)


@click.group()
def broker() -> None:
    """Look at a broker and its dead letters: messages that nobody could read, or that came too often.

    A message is only a hint: its run is in the store, and is found there whatever becomes of the message.
    """


@broker.command()
@broker_option
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Queues to count; `default` unless given.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str | None, queues: tuple[str, ...], namespace: str, as_json: bool) -> None:
    """Reach the broker; count what waits for workers and what they have not answered."""
    from mainspring.engine.dispatcher import work_topic
    from mainspring.engine.intake import GROUP
    from mainspring.rules.lanes import lane_of

    async def look(found: Broker) -> dict[str, dict[str, int]]:
        topics = [work_topic(lane_of(namespace, queue)) for queue in queues or ("default",)]
        return {topic: msgspec.structs.asdict(await found.depth(topic, group=GROUP)) for topic in topics}

    topics = _ask(url, look)
    if as_json:
        print_json(topics)
        return
    for topic, depth in topics.items():
        click.echo(f"{topic}: {depth['waiting']} waiting, {depth['unanswered']} not answered yet")


@broker.command()
@broker_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", metavar="ID", help="Go on behind this one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dead(url: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List dead letters, oldest first."""
    letters = _ask(url, lambda found: found.dead(limit, after))
    if as_json:
        print_json([msgspec.structs.asdict(letter) | {"at": isoformat(letter.at)} for letter in letters])
        return
    for letter in letters:
        click.echo(f"{letter.id}  {isoformat(letter.at)}  {letter.topic}  {letter.reason}: {letter.body[:100]!r}")
    click.echo(f"{len(letters)} dead letters" if len(letters) != 1 else "1 dead letter")


@broker.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All of them.")
@broker_option
def replay(ids: tuple[str, ...], every: bool, url: str | None) -> None:
    """Publish dead letters again where they came from."""
    _move(ids, every, url, lambda found, some: found.replay(some), "replayed")


@broker.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All of them.")
@broker_option
def discard(ids: tuple[str, ...], every: bool, url: str | None) -> None:
    """Remove dead letters."""
    _move(ids, every, url, lambda found, some: found.discard(some), "discarded")


def _move(
    ids: tuple[str, ...], every: bool, url: str | None, move: Callable[[Broker, list[str]], Awaitable[int]], said: str
) -> None:
    if every == bool(ids):
        raise InvalidInput("ID", "say which dead letters", "Give their ids (`mainspring broker dead`), or --all")

    async def work(found: Broker) -> int:
        if ids:
            return await move(found, list(ids))
        letters: list[DeadLetter] = []  # first all of them: what is replayed may come back
        while page := await found.dead(PAGE, letters[-1].id if letters else None):
            letters += page
        return await move(found, [letter.id for letter in letters])

    count = _ask(url, work)
    click.echo(f"{count} {said}" + ("" if every or count == len(ids) else f", {len(ids) - count} not found"))
    if not every and count < len(ids):
        raise SystemExit(1)


def _ask(url: str | None, question: Callable[[Broker], Awaitable[T]]) -> T:
    given = url or os.environ.get("MAINSPRING_BROKER")
    if not given:
        raise InvalidInput("--broker", "no broker is named", "Give its URL with --broker or MAINSPRING_BROKER")
    if given.lower().startswith("memory:"):
        raise InvalidInput("--broker", f"{given} lives inside one process", "Give the URL of one that others can reach")

    async def ask() -> T:
        from mainspring.engine.runtime import open_broker

        found = open_broker(given, SystemClock())
        try:
            await found.open()
            return await question(found)
        finally:
            await found.close()

    return asyncio.run(ask())
