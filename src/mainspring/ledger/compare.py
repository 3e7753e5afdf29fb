"""Compare two stores by numbers of rows, the account of every fire, and a hash of the content."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import astuple, replace

from mainspring.ledger.account import ledger
from mainspring.ledger.copy import is_copied_lease
from mainspring.ledger.verify import verify
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import COPIED_KINDS, KeyValue
from mainspring.model.lease import Lease
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Gates, KeyValues, Leases, Runs, Schedules, Store, Tallies

#: Name of a sum → its value: a number of rows, a number of the ledger, or a hash.
Sums = dict[str, int | str]
#: Events that are read at once.
_PAGE = 2_000
#: Types of values that are hashed as they are.
_PLAIN = frozenset((str, int, float, bool, type(None)))


class Comparison(Struct, frozen=True):
    """The sums of two stores (name → number or hash).

    If all sums are equal, so are the contents, apart from what `hash_content` leaves out.
    """

    source: Sums
    target: Sums

    @property
    def differences(self) -> list[str]:
        """The names of the sums that are not equal in both stores."""
        return [name for name in self.source if self.source[name] != self.target[name]]

    @property
    def ok(self) -> bool:
        """True if no sum differs and the target's rows agree with its event log."""
        return not self.differences and self.target["unproven"] == 0


async def compare(source: Store, target: Store, now: Ms) -> Comparison:
    """Return the sums of two stores as of `now`: numbers of rows and of the ledger, and a hash of the content."""
    return Comparison(await sum_store(source, now), await sum_store(target, now))


async def sum_store(store: Store, now: Ms) -> Sums:
    """Return the sums of a store by name. `now` decides which fires are due and not settled yet.

    The sum "unproven" is the number of differences between rows and log; "content" is the hash of the content.
    """
    report = await verify(store)
    book = await ledger(store, now)
    work = book.ad_hoc
    found: Sums = {
        name: getattr(report, name) for name in ("events", "runs", "schedules", "spans", "bodies", "gates", "tallies")
    }
    found["kept"] = len([row async for row in read_copied_values(store)])
    found["leases"] = len([row async for row in read_copied_leases(store)])
    found["unproven"] = report.found
    found |= {name: getattr(book, name) for name in ("planned", "ended", "open")}
    found |= {"skipped": sum(book.skipped.values()), "missed": book.missed, "behind": book.behind}
    found |= {"ad hoc enqueued": work.enqueued, "ad hoc ended": work.ended, "ad hoc open": work.open}
    found |= {"unexplained": book.unexplained, "content": await hash_content(store)}
    return found


async def hash_content(store: Store) -> str:
    """Return a hash of the log and the rows, in hexadecimal.

    The hash does not depend on the order in which the store returns rows. Left out are the ends of leases, touches of
    schedules, and rows that a copy leaves out. Payloads are represented by their ids, which are hashes: rows contain
    the ids.
    """
    total = _Total()
    after = 0
    while events := await store.tail(after, _PAGE):
        total.add(events)
        after = events[-1].seq
    async for run in iterate_rows(store, Runs(oldest_first=True, limit=1_000), lambda run: run.id):
        total.add([replace(run, lease_until=None)])
    states = Schedules(states=("active", "paused", "finished", "deleted"), limit=500)
    async for schedule in iterate_rows(store, states, lambda row: row.id):
        total.add([schedule])
    async for span in iterate_spans(store):
        total.add([span])
    async for gate in iterate_rows(store, Gates(limit=1_000), lambda gate: gate.name):
        total.add([gate])
    tallies = await store.find(Tallies(limit=1_000_000))
    total.add(tallies)
    async for row in read_copied_values(store):
        total.add([row])
    async for lease in read_copied_leases(store):
        total.add([replace(lease, expires_at=0, live=False, left=0)])
    return f"{total.value:032x}"


async def read_copied_leases(store: Store) -> AsyncIterator[Lease]:
    """Yield the named leases that a copy contains: locks, execution leases and the leaders' terms."""
    async for row in iterate_rows(store, Leases(limit=1_000), lambda row: row.name):
        if is_copied_lease(row):
            yield row


async def read_copied_values(store: Store) -> AsyncIterator[KeyValue]:
    """Yield the key-value entries that a copy contains: secrets and API keys."""
    for kind in COPIED_KINDS:
        async for row in iterate_rows(store, KeyValues(kind=kind, limit=500), lambda row: row.id):
            yield row


class _Total:
    """Hash of rows that does not depend on their order: the sum of each row's hash, modulo 2 to the power of 128."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rows: Iterable[object]) -> None:
        """Add the hash of each row to `value`."""
        for row in rows:
            digest = hashlib.blake2b(repr(_plain(row)).encode(), digest_size=16).digest()
            self.value = (self.value + int.from_bytes(digest)) & ((1 << 128) - 1)


def _plain(value: object) -> object:
    """Return a row as nested lists of plain values, whose `repr` can be hashed.

    Why the encoded row is not hashed: the encoder omits a default only if it is the identical object, so equal rows can
    be encoded differently.
    """
    if isinstance(value, Struct):
        return type(value).__name__, [x if x.__class__ in _PLAIN else _plain(x) for x in astuple(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
