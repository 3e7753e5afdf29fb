"""`mainspring broker`: count the messages in a broker's queues; list, replay and discard its dead letters."""

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
#: Dead letters read by one call of the broker.
DEAD_LETTER_PAGE = 500


def broker_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--broker URL` to a command, which receives it as `url`."""
    return click.option("--broker", "url", metavar="URL", help="URL of the broker; default: $MAINSPRING_BROKER.")(
        command
    )


@click.group()
def broker() -> None:
    """Look at a broker and its dead letters: messages that no consumer could read, or that failed too often.

    A message is only a hint. Its run is in the store, where a worker finds it even if the message is lost.
    """


@broker.command()
@broker_option
@click.option(
    "--queue", "queues", multiple=True, metavar="QUEUE", help="A queue to count; repeatable. Default: `default`."
)
@click.option("--namespace", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str | None, queues: tuple[str, ...], namespace: str, as_json: bool) -> None:
    """Count the messages in each queue: those that wait, and those delivered but not acknowledged by a worker.

    This also checks that the broker can be reached; exit with 1 if it cannot.
    """
    from mainspring.engine.broker.consumer import GROUP
    from mainspring.engine.broker.dispatcher import work_topic
    from mainspring.rules.lanes import lane_of

    async def depths(found: Broker) -> dict[str, dict[str, int]]:
        topics = [work_topic(lane_of(namespace, queue)) for queue in queues or ("default",)]
        return {topic: msgspec.structs.asdict(await found.depth(topic, group=GROUP)) for topic in topics}

    topics = _with_broker(url, depths)
    if as_json:
        print_json(topics)
        return
    for topic, depth in topics.items():
        click.echo(f"{topic}: {depth['waiting']} waiting, {depth['unanswered']} not acknowledged")


@broker.command()
@broker_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", metavar="ID", help="List dead letters after this one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dead(url: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List dead letters, oldest first, each with the reason for which it was given up."""
    letters = _with_broker(url, lambda found: found.dead_letters(limit, after))
    if as_json:
        print_json([msgspec.structs.asdict(letter) | {"at": isoformat(letter.at)} for letter in letters])
        return
    for letter in letters:
        click.echo(f"{letter.id}  {isoformat(letter.at)}  {letter.topic}  {letter.reason}: {letter.body[:100]!r}")
    click.echo(f"{len(letters)} dead letters" if len(letters) != 1 else "1 dead letter")


@broker.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All dead letters.")
@broker_option
def replay(ids: tuple[str, ...], every: bool, url: str | None) -> None:
    """Publish dead letters again to the topics that they came from; exit with 1 if an ID does not exist."""
    _move(ids, every, url, lambda found, some: found.replay(some), "replayed")


@broker.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All dead letters.")
@broker_option
def discard(ids: tuple[str, ...], every: bool, url: str | None) -> None:
    """Remove dead letters from the broker; exit with 1 if an ID does not exist. Their runs stay in the store."""
    _move(ids, every, url, lambda found, some: found.discard(some), "discarded")


def _move(
    ids: tuple[str, ...], every: bool, url: str | None, move: Callable[[Broker, list[str]], Awaitable[int]], done: str
) -> None:
    """Replay or discard the dead letters `ids`, or all of them if `every`, and print how many there were.

    `move(broker, ids)` does it and returns how many of the ids existed; `done` is the verb in the output. Exits with 1
    if an id did not exist. Raises: InvalidInput unless either ids or `every` is given.
    """
    if every == bool(ids):
        raise InvalidInput("ID", "names no dead letter", "Give ids (`mainspring broker dead` lists them), or --all")

    async def work(found: Broker) -> int:
        if ids:
            return await move(found, list(ids))
        letters: list[DeadLetter] = []  # read all before moving any: a replayed one can come back
        while page := await found.dead_letters(DEAD_LETTER_PAGE, letters[-1].id if letters else None):
            letters += page
        return await move(found, [letter.id for letter in letters])

    count = _with_broker(url, work)
    click.echo(f"{count} {done}" + ("" if every or count == len(ids) else f", {len(ids) - count} not found"))
    if not every and count < len(ids):
        raise SystemExit(1)


def _with_broker(url: str | None, work: Callable[[Broker], Awaitable[T]]) -> T:
    """Open the broker at `url`, return what `work(broker)` returns, and close the broker.

    `url` None stands for $MAINSPRING_BROKER. Raises: InvalidInput if that is not set either, or if the URL names a
    memory broker, which would be another one than that of the running instances.
    """
    given = url or os.environ.get("MAINSPRING_BROKER")
    if not given:
        raise InvalidInput("--broker", "names no broker", "Give its URL with --broker or MAINSPRING_BROKER")
    if given.lower().startswith("memory:"):
        raise InvalidInput(
            "--broker", f"{given} lives inside one process", "Give the URL of a broker that other processes reach"
        )

    async def run() -> T:
        from mainspring.runtime.runtime import open_broker

        found = open_broker(given, SystemClock())
        try:
            await found.open()
            return await work(found)
        finally:
            await found.close()

    return asyncio.run(run())
