"""The tutorial runs from its first command to its last, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

from tests.docs.page_commands import DOCS, run_page


def test_the_tutorial_runs(tmp_path: Path) -> None:
    run_page((DOCS / "tutorial.md").read_text(encoding="utf-8"), tmp_path)
