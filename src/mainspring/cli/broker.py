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
#: The most dead letters in one answer of the broker.
DEAD_LETTER_PAGE = 500


def broker_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--broker URL` to a command, which receives it as `url`."""
    return click.option("--broker", "url", metavar="URL", help="URL of the broker; default: $MAINSPRING_BROKER.")(
        command
    )


@click.group()
def broker() -> None:
    """Count a broker's messages; list, replay or discard its dead letters.

    A dead letter is a message that could not be read, or that was delivered too often. A message only announces a run.
    The run itself is in the store, where a worker finds it even if the message is lost.
    """


@broker.command()
@broker_option
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="A queue to count; repeatable. Without it, only the queue `default` is counted.",
)
@click.option("--namespace", default="default", show_default=True, help="Namespace of the queues.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str | None, queues: tuple[str, ...], namespace: str, as_json: bool) -> None:
    """Count the messages in the queues given by --queue, else in the queue `default`.

    Two numbers are printed for each queue: messages that wait, and messages that were delivered but not acknowledged by
    a worker. Exit with 1 if the broker cannot be reached.
    """
    from mainspring.engine.broker.consumer import WORKER_GROUP
    from mainspring.engine.broker.dispatcher import work_topic
    from mainspring.rules.lanes import lane_of

    async def depths(found: Broker) -> dict[str, dict[str, int]]:
        topics = [work_topic(lane_of(namespace, queue)) for queue in queues or ("default",)]
        return {topic: msgspec.structs.asdict(await found.depth(topic, group=WORKER_GROUP)) for topic in topics}

    topics = _with_broker(url, depths)
    if as_json:
        print_json(topics)
        return
    for topic, depth in topics.items():
        click.echo(f"{topic}: {depth['waiting']} waiting, {depth['unanswered']} not acknowledged")


@broker.command()
@broker_option
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The most dead letters to list."
)
@click.option("--after", metavar="ID", help="List only dead letters after the one with this ID.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dead(url: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List the broker's dead letters, oldest first, each with the reason why it became one."""
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
    """Publish dead letters of the broker to their topics again. They are messages; no run is changed.

    Give either IDs or --all. Exit with 1 if an ID is unknown.
    """
    _move(ids, every, url, lambda found, some: found.replay(some), "replayed")


@broker.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All dead letters.")
@broker_option
def discard(ids: tuple[str, ...], every: bool, url: str | None) -> None:
    """Remove dead letters from the broker. Their runs stay in the store.

    Give either IDs or --all. Exit with 1 if an ID is unknown.
    """
    _move(ids, every, url, lambda found, some: found.discard(some), "discarded")


def _move(
    ids: tuple[str, ...], every: bool, url: str | None, move: Callable[[Broker, list[str]], Awaitable[int]], done: str
) -> None:
    """Replay or discard the dead letters `ids`, or all if `every` is True, and print how many were found.

    `move(broker, ids)` replays or discards, and returns how many of the ids existed. `done` is the word for the output:
    "replayed" or "discarded". If an id did not exist, the process exits with 1. Raises: InvalidInput if both `ids` and
    `every` are given, or neither.
    """
    if every == bool(ids):
        raise InvalidInput(
            "ID", "give either ids or --all, not both and not neither", "`mainspring broker dead` lists the ids"
        )

    async def work(found: Broker) -> int:
        if ids:
            return await move(found, list(ids))
        letters: list[DeadLetter] = []  # all are listed before any is replayed, because a replayed one can come back
        while page := await found.dead_letters(DEAD_LETTER_PAGE, letters[-1].id if letters else None):
            letters += page
        return await move(found, [letter.id for letter in letters])

    count = _with_broker(url, work)
    click.echo(f"{count} {done}" + ("" if every or count == len(ids) else f", {len(ids) - count} not found"))
    if not every and count < len(ids):
        raise SystemExit(1)


def _with_broker(url: str | None, work: Callable[[Broker], Awaitable[T]]) -> T:
    """Open the broker at `url`, return what `work(broker)` returns, and close the broker.

    `url` None stands for $MAINSPRING_BROKER. Raises: InvalidInput if there is no URL, or if it names a memory broker,
    because such a broker is visible only inside the process that made it.
    """
    given = url or os.environ.get("MAINSPRING_BROKER")
    if not given:
        raise InvalidInput("--broker", "names no broker", "Give its URL with --broker or MAINSPRING_BROKER")
    if given.lower().startswith("memory:"):
        raise InvalidInput(
            "--broker", f"{given} lives inside one process", "Give the URL of a broker that other processes reach"
        )

    async def run() -> T:
        from mainspring.runtime.lazy_backends import open_broker

        found = open_broker(given, SystemClock())
        try:
            await found.open()
            return await work(found)
        finally:
            await found.close()

    return asyncio.run(run())
