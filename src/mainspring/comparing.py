"""Two stores side by side: how much of each kind, the account of every fire, and one number over all of the content."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import astuple, replace

from mainspring.ledger import ledger
from mainspring.model.instant import Ms
from mainspring.model.kept import LASTING, Kept
from mainspring.paging import all_rows, all_spans
from mainspring.ports.store import Gates, KeptOnes, Runs, Schedules, Store, Tallies
from mainspring.verify import verify

#: The log, the rows, and the ledger's equation.
Sums = dict[str, int | str]
_PAGE = 2_000
_PLAIN = frozenset((str, int, float, bool, type(None)))


class Comparison(Struct, frozen=True):
    """The same sums of both; equal means that everything is."""

    source: Sums
    target: Sums

    @property
    def differences(self) -> list[str]:
        """The names of what differs."""
        return [name for name in self.source if self.source[name] != self.target[name]]

    @property
    def ok(self) -> bool:
        """True when nothing differs and the target's rows are what its log says."""
        return not self.differences and self.target["unproven"] == 0


async def compare(source: Store, target: Store, now: Ms) -> Comparison:
    """Sum up both, as of the same instant."""
    return Comparison(await sums(source, now), await sums(target, now))


async def sums(store: Store, now: Ms) -> Sums:
    """`unproven` counts what `events verify` finds; `content` is a hash over everything but leases."""
    report = await verify(store)
    book = await ledger(store, now)
    work = book.ad_hoc
    found: Sums = {
        name: getattr(report, name) for name in ("events", "runs", "schedules", "spans", "bodies", "gates", "tallies")
    }
    found["kept"] = len([row async for row in kept(store)])
    found["unproven"] = report.found
    found |= {name: getattr(book, name) for name in ("planned", "ended", "open")}
    found |= {"skipped": sum(book.skipped.values()), "missed": book.missed, "behind": book.behind}
    found |= {"ad hoc enqueued": work.enqueued, "ad hoc ended": work.ended, "ad hoc open": work.open}
    found |= {"unexplained": book.unexplained, "content": await content(store)}
    return found


async def content(store: Store) -> str:
    """A hash of the log and the rows; equal whatever the order in which a store gives them."""
    total = _Total()
    after = 0
    while events := await store.tail(after, _PAGE):
        total.add(events)
        after = events[-1].seq
    async for run in all_rows(store, Runs(oldest_first=True, limit=1_000), lambda run: run.id):
        total.add([replace(run, lease_until=None)])
    states = Schedules(states=("active", "paused", "finished", "deleted"), limit=500)
    async for schedule in all_rows(store, states, lambda row: row.id):
        total.add([schedule])
    async for span in all_spans(store):
        total.add([span])
    async for gate in all_rows(store, Gates(limit=1_000), lambda gate: gate.name):
        total.add([gate])
    tallies = await store.find(Tallies(limit=1_000_000))
    total.add(tallies)
    async for row in kept(store):
        total.add([row])
    return f"{total.value:032x}"


async def kept(store: Store) -> AsyncIterator[Kept]:
    """The secrets and keys that belong to a store's content."""
    for kind in LASTING:
        async for row in all_rows(store, KeptOnes(kind=kind, limit=500), lambda row: row.id):
            yield row


class _Total:
    """A sum of hashes."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rows: Iterable[object]) -> None:
        for row in rows:
            digest = hashlib.blake2b(repr(_plain(row)).encode(), digest_size=16).digest()
            self.value = (self.value + int.from_bytes(digest)) & ((1 << 128) - 1)


def _plain(value: object) -> object:
    """A row without its types; not by an encoder, which leaves a default out only where it is the very same object."""
    if isinstance(value, Struct):
        return type(value).__name__, [x if x.__class__ in _PLAIN else _plain(x) for x in astuple(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
