"""Insert runs inside a caller's own transaction: a sequence of statements, which `caller_connections` sends.

This module does no I/O, so blocking and async connections share its code.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.postgres import transactional_sql as sql
from mainspring.backends.postgres.rows import FRESH_COLUMNS, body_rows, fresh_row, read_run, storable_text
from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.errors import SchemaMismatch, StoreError
from mainspring.model.event_codec import encode_data
from mainspring.model.events import RunScheduled
from mainspring.model.instant import Ms

_encoder = msgspec.json.Encoder()
_holders = msgspec.json.Decoder(list[list[Any]])
#: How many times an insert is tried. A try is repeated if the run that held the unique key ended before it was read.
_MAX_KEY_RACES = 20

#: A statement and its one parameter, a JSON text. The answer to the statement is one JSON text, too.
Statement = tuple[str, str]


class StoreIdentity(Struct, frozen=True):
    """Identifies the store's database and schema, to check that a caller's connection leads to them."""

    #: The text that READ_IDENTITY returns on the store's own connection.
    identity: str
    schema: str
    #: The channel for notifications of the store's instances.
    channel: str
    #: The store's name in error texts.
    where: str


class _Answer(Struct):
    """The decoded answer to the statement INSERT_RUNS_IF_AT_HOME."""

    #: True if the connection leads to the store's own database and schema. If not, nothing was inserted.
    home: bool
    #: The name of the database to which the connection leads, and the version of Mainspring's schema there.
    database: str
    version: int | None
    #: The ids of the inserted runs; None if there are none.
    ids: list[str] | None = None


_answer = msgspec.json.Decoder(_Answer)


def insert_runs(
    changes: Sequence[Change], store: StoreIdentity, now: Ms | None
) -> Generator[Statement, str, list[Result]]:
    """Insert new runs: a generator that yields statements, is sent their answers, and returns the changes' results.

    If another run holds the unique key of a change, the change is refused, and its result has this run; the caller's
    transaction stays usable. `store`: where the connection must lead. `now`: the instant to stamp on the runs; None:
    the server's time.

    Raises: `SchemaMismatch` if the connection leads to another database or schema than the store's; `StoreError` if, in
    each of _MAX_KEY_RACES tries, a unique key was held at the insert and free when its holder was read.
    """
    results: list[Result] = [Result("refused")] * len(changes)
    left = list(enumerate(changes))
    for _ in range(_MAX_KEY_RACES):
        document = _insert_document([change for _, change in left], store, now)
        answer = _answer.decode((yield sql.INSERT_RUNS_IF_AT_HOME, _text(document)))
        if not answer.home:
            raise schema_not_found(store, f"database {answer.database!r} has one of its own (version {answer.version})")
        keys = _accept_inserted(left, set(answer.ids or ()), results)
        if not keys:
            return results
        for place, *row in _holders.decode((yield sql.FIND_KEY_HOLDERS, _text({"keys": keys}))):
            holder = read_run(row)
            results[place] = Result("refused", holder.n, holder)
        left = [(place, changes[place]) for place in (key["place"] for key in keys) if results[place].current is None]
        if not left:
            return results
    raise StoreError(
        "a run could not be inserted: its unique key was taken and released "
        f"{_MAX_KEY_RACES} times meanwhile. Try again"
    )


def _accept_inserted(changes: IndexedChanges, inserted: set[str], results: list[Result]) -> list[dict[str, Any]]:
    """Set the results of the changes whose run was inserted, and of the changes without a guard, to accepted.

    Return the index and unique key of each other change, as an object for the JSON text of FIND_KEY_HOLDERS.
    `inserted`: the ids of the inserted runs.
    """
    keys: list[dict[str, Any]] = []
    for place, change in changes:
        guard, run = change.guard, change.run
        if not isinstance(guard, RunAbsent) or run is None or guard.id in inserted:
            results[place] = Result("accepted", 0 if guard is None else 1)
        else:
            keys.append({"place": place, "ns": run.ns, "unique_key": guard.unique_key})
    return keys


def _insert_document(changes: Sequence[Change], store: StoreIdentity, now: Ms | None) -> dict[str, Any]:
    """Return the parameter of INSERT_RUNS_IF_AT_HOME, before its encoding as JSON, for the runs of these changes."""
    bodies = body_rows(body for change in changes for body in change.bodies)
    return {
        "now": now,
        "home": store.identity,
        "channel": store.channel,
        "runs": [row for change in changes for row in _rows(change)],
        "bodies": [{"id": name, "data": data} for name, data in bodies],
    }


def _rows(change: Change) -> list[dict[str, Any]]:
    """Return for each run that a change inserts an object for the JSON text: the columns of the run and its event."""
    runs = change.runs if change.run is None else (change.run,)
    rows: list[dict[str, Any]] = []
    for run, event in zip(runs, change.events, strict=True):
        fresh = fresh_row(run, 1)
        assert fresh is not None
        assert type(event) is RunScheduled, "only new runs can join a transaction"
        row = dict(zip(FRESH_COLUMNS, fresh, strict=True))
        row["event_actor"] = storable_text(event.actor)
        row["event_change"] = storable_text(change.id)
        row["event_data"] = encode_data(event)
        rows.append(row)
    return rows


def _text(document: dict[str, Any]) -> str:
    return _encoder.encode(document).decode()


def schema_not_found(store: StoreIdentity, why: str) -> SchemaMismatch:
    """Return the error for a caller's connection that does not lead to the store's schema.

    `why`: the fact that shows it, for the error text.
    """
    return SchemaMismatch(
        f"connection: it does not lead to the schema {store.schema!r} of {store.where}: {why}. "
        "Give a connection to the store's database, or open the store with the URL of the connection's database"
    )
