"""The page about the compatibility interfaces: its examples run, and the names in it exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

SAID = {
    "scheduler": rf"Task scheduled: ({UUID})\n\1 hello acme\n",
    "handlers": r"\['welcome', 'weekly'\]\nemail_sent a@b.example\n",
    "jobs": r"A-share UTC False\nA-share UTC False\n2 None None\n",
}


@pytest.mark.parametrize(("door", "snippet"), list(zip(SAID, SNIPPETS, strict=True)), ids=list(SAID))
def test_the_example_of_each_door_runs(door: str, snippet: str, capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(snippet, f"docs/sources.md, {door}", "exec"), {"__name__": "__main__"})
    said = capfd.readouterr().out
    assert re.fullmatch(SAID[door], said), said


@pytest.mark.parametrize("door", list(SAID))
def test_every_public_name_of_a_door_exists(door: str) -> None:
    module = importlib.import_module(f"mainspring.compat.{door}")
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_snippet_imports_what_a_user_can_import() -> None:
    for snippet in SNIPPETS:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mainspring."):
                module = importlib.import_module(node.module or "")
                assert {alias.name for alias in node.names} <= set(module.__all__)


def test_the_readme_links_to_the_page() -> None:
    assert "(docs/sources.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
