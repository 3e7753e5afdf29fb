"""Kinds of changes: each is promised by the code that builds the change, and kept by its parts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.change import Change, RunAt
from mainspring.model.gate import Gate
from mainspring.model.schedule import Span
from mainspring.rules.change_shape import fits_kind, shape_of
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_body,
    make_run,
    make_schedule,
    plan_change,
    scheduled,
)


def plain_changes() -> dict[str, Change]:
    ids = Ids()
    running = replace(make_run(ids), epoch=1, attempt=1, owner="w", started_at=T0, n=2)
    runs = (make_run(ids), make_run(ids))
    return {
        "success": finish_change(ids, running),
        "new_runs": Change(id=ids.change(), runs=runs, events=tuple(map(scheduled, runs)), kind="new_runs"),
        "plan": plan_change(ids, make_schedule(ids), [T0 + 1, T0 + 2]),
        "new_schedule": create_schedule_change(ids, make_schedule(ids), body='"payload"'),
    }


@pytest.mark.parametrize("kind", ["success", "new_runs", "plan", "new_schedule"])
def test_each_kind_is_the_shape_of_its_change(kind: str) -> None:
    change = plain_changes()[kind]
    assert (change.kind, shape_of(change)) == (kind, kind)


def test_a_single_new_run_is_of_the_same_kind_as_many() -> None:
    ids = Ids()
    assert enqueue_change(ids, make_run(ids, unique_key="k"), body='"x"', gates=[Gate("g", 1)]).kind == "new_runs"


#: Parts that no change of a kind may have, and how they are given to it.
EXTRAS: dict[str, dict[str, Any]] = {
    "touches": {"touches": ("s",)},
    "spans": {"spans": (Span("s", 1, T0, T0 + 1, 1, "paused", "default"),)},
    "events": {"events": ()},
}


@pytest.mark.parametrize("kind", ["success", "new_runs", "plan", "new_schedule"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_a_further_part_makes_it_another_shape(kind: str, extra: str) -> None:
    changed = replace(plain_changes()[kind], **EXTRAS[extra])
    assert shape_of(changed) != kind
    assert not fits_kind(changed)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("success", {"bodies": (make_body('"x"'),)}),
        ("new_runs", {"bodies": (make_body('"used by no run"'),)}),
        ("plan", {"bodies": (make_body('"x"'),)}),
        ("plan", {"gates": (Gate("g", 1),)}),
        ("new_runs", {"guard": RunAt("another", 1)}),
    ],
)
def test_parts_that_a_fast_path_would_leave_out_make_it_another_shape(kind: str, parts: dict[str, Any]) -> None:
    assert not fits_kind(replace(plain_changes()[kind], **parts))


def test_a_change_of_no_kind_always_fits() -> None:
    assert all(fits_kind(replace(change, kind="other")) for change in plain_changes().values())
