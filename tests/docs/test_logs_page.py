"""The example of docs/logs.md runs and prints what the handler wrote; the page's numbers are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.redis.store import RedisStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.engine.work.log_writer import MAX_LINE_CHARS, MAX_WAITING_BYTES
from mainspring.model.run_log import MAX_RUN_LOG_BYTES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
    (tmp_path / "app.py").write_text(snippet, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-W", "error", "app.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    printed = "also kept, because the task captures it"
    assert (answer.returncode, answer.stdout.splitlines()) == (
        0,
        [
            printed,
            printed,
            "1 log sending to acme",
            f"1 print {printed}",
            "2 log sending to acme",
            f"2 print {printed}",
        ],
    ), answer.stderr


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_RUN_LOG_BYTES >> 10} KiB" in DOCUMENT
    assert f"{MAX_LINE_CHARS:,}" in DOCUMENT
    assert f"{MAX_WAITING_BYTES >> 20} MiB of lines wait" in DOCUMENT
    assert "at most 1 GiB, or 64 MiB on Redis and in memory" in DOCUMENT
    assert SqliteStore.capabilities.logs_limit == 1 << 30
    assert RedisStore.capabilities.logs_limit == MemoryStore.capabilities.logs_limit == 64 << 20
