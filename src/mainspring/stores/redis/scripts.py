"""Lua scripts: one call for a verb, sent by their hash, loaded again by a server that forgot them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


class Script:
    """A script's text and what the server calls it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - the server's own name for it


@cache
def load(name: str, *parts: str) -> Script:
    """The script of the files `parts`, one after the other; of its own file when there are none."""
    folder = resources.files("mainspring.stores.redis") / "lua"
    texts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts or (name,)]
    return Script(name, "\n".join(texts))
