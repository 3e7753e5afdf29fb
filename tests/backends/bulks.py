"""Bulk inserts of new runs, for the tests of the stores' fast paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.model.change import Body, Change
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run
from mainspring.testing.contract.factories import T0, Ids, make_body, make_run, scheduled, with_kind


def bulk_change(ids: Ids, runs: Sequence[Run], bodies: Sequence[Body] = ()) -> Change:
    """Return a change that inserts many runs, as `enqueue_many` makes it."""
    change = Change(id=ids.change(), runs=tuple(runs), bodies=tuple(bodies), events=tuple(map(scheduled, runs)))
    return with_kind(change)


def mixed_bulks(ids: Ids) -> list[tuple[list[Run], list[Body]]]:
    """Return bulks of runs with their payloads: equal runs, other payloads, some without, and runs of all kinds."""
    one, two, three = bodies = [make_body(f'{{"k":{{"x":{x}}}}}') for x in range(3)]
    equal = [make_run(ids) for _ in range(4)]
    paid = [make_run(ids, body=body.id) for body in (one, two, three, one, one)]
    some = [make_run(ids, body=body) for body in (two.id, None, None, three.id, three.id, None)]
    varied: list[dict[str, Any]] = [
        {"priority": 0},
        {"priority": 0, "body": one.id},
        {"priority": 3, "body": two.id},
        {"priority": 3, "body": three.id},
        {"task": "tâche\0"},
        {"task": "tâche\0", "body": three.id},
        {"task": "tâche\0", "body": one.id},
        {"lane": "a\0/b"},
        {"lane": "a\0/b"},
        {"due_at": T0 + 5},
        {"due_at": T0 + 7},
        {"gates": ("g", "h\0")},
        {"gates": ("g", "h\0")},
        {"options": RunOptions(timeout=5)},
        {"options": RunOptions(timeout=5)},
        {"options": RunOptions(timeout=6)},
        {},
        {"body": two.id},
    ]
    differ = [make_run(ids, **each) for each in varied]
    return [(equal, []), (paid, bodies), (some, [two, three]), (differ, bodies), ([make_run(ids)], [])]
