"""docs/redis.md names every key that a script touches, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LUA = ROOT / "src/mainspring/backends/redis/lua"
#: A key's name: behind the prefix, or given to one of the functions that put the prefix before it.
_NAMED = re.compile(
    r"(?:P|KEYS\[1\]) \.\. '([a-z:]+)'"
    r"|\b(?:zput|zdel|hput|hget|hdel|hload|push)\('([a-z:]+)'"
    r"|\bzput_registered\('([a-z]+)', '([a-z:]+)'"
    r"|\bregistries\.([a-z]+)\["
)


def in_scripts() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(LUA.glob("*.lua")))
    return {name for names in _NAMED.findall(text) for name in names if name}


def in_docs() -> set[str]:
    text = (ROOT / "docs/redis.md").read_text(encoding="utf-8").partition("## Keys")[2]
    cells = (line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return {re.sub(r"<.*>", "", name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_key_is_documented() -> None:
    scripts = in_scripts()
    assert len(scripts) > 40
    assert scripts - in_docs() == set()


def test_every_documented_key_exists() -> None:
    assert in_docs() - in_scripts() == set()
