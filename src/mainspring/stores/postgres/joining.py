"""Births inside a caller's own transaction: what is asked of its connection, step by step; nothing here does I/O."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.errors import SchemaMismatch, StoreError
from mainspring.model.events import RunScheduled, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.stores.postgres import joining_sql as sql
from mainspring.stores.postgres.rows import FRESH_COLUMNS, body_rows, fresh_row, plain_text, read_run

_encoder = msgspec.json.Encoder()
_holders = msgspec.json.Decoder(list[list[Any]])
#: So often a unique key that was taken a moment ago is free when its holder is asked for.
_RACES = 20

#: A statement and its one parameter; what is sent back is the one text it answers with.
Ask = tuple[str, str]


class Home(Struct, frozen=True):
    """The store's own database and schema, as the caller's connection must find them."""

    identity: str
    schema: str
    channel: str
    where: str


class _Answer(Struct):
    home: bool
    database: str
    version: int | None
    ids: list[str] | None = None


_answer = msgspec.json.Decoder(_Answer)


def births(changes: Sequence[Change], home: Home, now: Ms | None) -> Generator[Ask, str, list[Result]]:
    """Write new runs; a unique key that is held answers with its holder, and the transaction goes on."""
    results: list[Result] = [Result("refused")] * len(changes)
    left = list(enumerate(changes))
    for _ in range(_RACES):
        document = {
            "now": now,
            "home": home.identity,
            "channel": home.channel,
            "runs": [row for _, change in left for row in _rows(change)],
            "bodies": [
                {"id": name, "data": data}
                for name, data in body_rows(body for _, change in left for body in change.bodies)
            ],
        }
        answer = _answer.decode((yield sql.BIRTHS, _text(document)))
        if not answer.home:
            raise elsewhere(home, f"database {answer.database!r} has one of its own (version {answer.version})")
        written = set(answer.ids or ())
        refused: list[tuple[int, RunAbsent, Run]] = []
        for place, change in left:
            guard, run = change.guard, change.run
            if not isinstance(guard, RunAbsent) or run is None or guard.id in written:
                results[place] = Result("accepted", 0 if guard is None else 1)
            else:
                refused.append((place, guard, run))
        if not refused:
            return results
        keys = [{"place": place, "ns": run.ns, "unique_key": guard.unique_key} for place, guard, run in refused]
        for place, *row in _holders.decode((yield sql.HOLDERS, _text({"keys": keys}))):
            holder = read_run(row)
            results[place] = Result("refused", holder.n, holder)
        left = [(place, changes[place]) for place, _, _ in refused if results[place].current is None]
        if not left:
            return results
    raise StoreError("a unique key was taken and free again each time it was looked at")


def _rows(change: Change) -> list[dict[str, Any]]:
    """What the statement needs of each run of a change."""
    born = change.runs if change.run is None else (change.run,)
    rows: list[dict[str, Any]] = []
    for run, event in zip(born, change.events, strict=True):
        fresh = fresh_row(run, 1)
        assert fresh is not None
        assert type(event) is RunScheduled, "only births can join a transaction"
        row = dict(zip(FRESH_COLUMNS, fresh, strict=True))
        row["event_actor"] = plain_text(event.actor)
        row["event_change"] = plain_text(change.id)
        row["event_data"] = encode_data(event)
        rows.append(row)
    return rows


def _text(document: dict[str, Any]) -> str:
    return _encoder.encode(document).decode()


def elsewhere(home: Home, why: str) -> SchemaMismatch:
    """The connection leads to another place than the store's."""
    return SchemaMismatch(
        f"connection: it does not lead to the schema {home.schema!r} of {home.where}: {why}. "
        "Give a connection to the store's own database, or the store the URL of this one"
    )
