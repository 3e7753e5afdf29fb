"""What a program sees: the exports of the package, the names of a `Mainspring`, and the sync door's methods."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mainspring
from mainspring import Mainspring
from mainspring.app.sync import SyncDoor
from mainspring.app.task import BaseTask

#: Methods that return a lock for `async with`; the sync door's return one for `with`.
LOCKS = {"lock", "execution_lease"}


def imports_for_type_checkers() -> dict[str, str]:
    """Return the names that the package imports for type checkers only, each with its module."""
    tree = ast.parse(Path(mainspring.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            assert name.asname == name.name  # without that, `mypy --strict` does not see it
            found[name.name] = str(node.module).removeprefix("mainspring.")
    return found


def test_type_checkers_see_exactly_the_exports() -> None:
    assert imports_for_type_checkers() == mainspring._MODULE_OF
    assert set(mainspring.__all__) == {*mainspring._MODULE_OF, "__version__"}
    assert len(mainspring.__all__) == len(set(mainspring.__all__))


def test_every_export_can_be_imported_and_others_are_refused() -> None:
    for name in mainspring.__all__:
        assert getattr(mainspring, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Mainsprnig'"):
        _ = mainspring.Mainsprnig  # type: ignore[attr-defined]  # that is what is tested


def test_dir_of_a_mainspring_shows_no_internals() -> None:
    names = {name for name in dir(Mainspring("memory://")) if not name.startswith("_")}
    internals = {"call", "opened", "new_id", "new_ids", "enqueue", "enqueue_many", "enqueue_blocking", "start", "drain"}
    internals |= {
        "report_progress",
        "use_broker",
        "claim_no_more",
        "adopt_agents",
        "check_agent",
        "capabilities",
        "now",
    }
    assert not names & internals
    assert {"schedule", "task", "cron", "runs", "sync", "run", "lock", "health"} <= names


def coroutine_methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if asyncio.iscoroutinefunction(value) and name[0] != "_"}


def parameters(function: Callable[..., Any]) -> list[tuple[str, object, object, str]]:
    """Return name, kind, default and annotation of each parameter."""
    return [
        (one.name, one.kind, one.default, str(one.annotation))
        for one in inspect.signature(function).parameters.values()
    ]


def test_the_sync_door_has_the_coroutine_methods_and_start() -> None:
    """`ms.sync.start()` is what is tried first in a synchronous program; it is `ms.start_background()`."""
    blocking = {name for name, value in vars(SyncDoor).items() if inspect.isfunction(value) and name[0] != "_"}
    assert blocking == coroutine_methods(Mainspring) | LOCKS | {"start"}


@pytest.mark.parametrize("name", sorted(coroutine_methods(Mainspring) | LOCKS))
def test_a_method_of_the_sync_door_has_the_signature_of_its_coroutine_method(name: str) -> None:
    method, blocking = getattr(Mainspring, name), getattr(SyncDoor, name)
    assert parameters(method) == parameters(blocking)
    expected = {"trigger": "SyncHandle[Any]"} | dict.fromkeys(LOCKS, "SyncLock")
    returns = inspect.signature(method).return_annotation
    assert inspect.signature(blocking).return_annotation == expected.get(name, returns)


def test_the_sync_door_of_a_task_has_its_coroutine_methods() -> None:
    ms = Mainspring("memory://")

    @ms.task
    def send(customer: str) -> str:
        return customer

    door = type(send.sync)
    assert {name for name in vars(door) if name[0] != "_"} == coroutine_methods(BaseTask)
    for name in coroutine_methods(BaseTask):
        assert parameters(getattr(BaseTask, name)) == parameters(getattr(door, name))
