"""The examples of docs/locks.md run and print what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "locks.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
SAID = {
    "lock": "first 1\nsecond 2\ntaken import-prices\n",
    "token": "new True\nlate False\n",
    "execution": (
        "one executes 09:00:00 token 1\ntwo leaves it: done\none executes 09:05:00 token 1\ntwo leaves it: done\n"
    ),
    "leader": "LeaderElected 1\nLeaderLost 1\nlive: True changes so far: 0 since the epoch: True\n",
}


@pytest.mark.parametrize(("name", "snippet"), list(zip(SAID, SNIPPETS, strict=True)), ids=list(SAID))
def test_the_examples_run(name: str, snippet: str, tmp_path: Path) -> None:
    options = ("-W", "error", "-c", snippet)
    answer = subprocess.run([sys.executable, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = answer.stdout
    if name == "leader":  # what a subscriber says comes when it comes
        said = "".join(sorted(said.splitlines(keepends=True)))
    assert (said, answer.returncode) == (SAID[name], 0), answer.stderr
