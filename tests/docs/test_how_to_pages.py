"""Each how-to page runs from its first command to its last, and prints what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page_commands import DOCS, Command, blocks_of, run_page

PAGES = sorted((DOCS / "how-to").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_of_the_page_is_run_or_imports_without_an_error(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    commands = " ".join(block.text for block in blocks if isinstance(block, Command))
    files = [block for block in blocks if not isinstance(block, Command) and block[0].endswith(".py")]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    left = [name.removesuffix(".py") for name, _ in files if name.removesuffix(".py") not in commands]
    program = "; ".join(f"import {name}" for name in left) or "pass"
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True)
