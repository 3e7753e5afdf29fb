"""docs/guarantees.md: every cell names its tests or says that there are none, and every test it names exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.testing.contract.store import StoreContract

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = dict(re.findall(r"^\| ([A-Z]\d+) \| `([^`]+)` \|$", DOCUMENT, re.M))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.partition("## The tests")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| when")
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_cell_names_a_test_or_states_that_there_is_none(row: list[str]) -> None:
    for cell in row[1:]:
        assert re.search(r"\[[A-Z]\d+\]|not proven|there is none|has one clock", cell), f"{row[0]}: {cell}"


def test_every_reference_leads_to_a_test_and_every_test_is_referred_to() -> None:
    assert len(ROWS) >= 14
    assert set(re.findall(r"\[([A-Z]\d+)\]", DOCUMENT)) == set(NAMED)


@pytest.mark.parametrize("name", NAMED.values(), ids=list(NAMED))
def test_the_test_exists(name: str) -> None:
    file, *parts = name.split("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    assert parts[0] in found, name
    if len(parts) == 2:
        assert hasattr(StoreContract, parts[1]), name


_PROGRAM = """
import asyncio
from mainspring import Mainspring

async def main() -> None:
    ms = Mainspring("memory://")
    @ms.task
    async def work() -> None: ...
    print(len(await ms.runs()))
    await work.enqueue()
    print(len(await ms.runs()))
    await ms.close()

asyncio.run(main())
"""


def test_a_memory_store_ends_with_its_process() -> None:
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["0", "1"]
