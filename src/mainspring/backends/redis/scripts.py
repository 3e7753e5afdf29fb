"""The Lua scripts of the store, which the server knows by their hash."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


class Script:
    """A Lua script: its text, the SHA-1 by which the server knows it, and its name.

    Tests know by this name the places in the code before and after a call of the script.
    """

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - Redis identifies scripts by SHA-1


@cache
def load(name: str, *parts: str) -> Script:
    """Return a script with this name. Its text is joined from the files `parts`, such as "common" for lua/common.lua.

    Without parts, the text is that of the file `name`.
    """
    folder = resources.files("mainspring.backends.redis") / "lua"
    texts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts or (name,)]
    return Script(name, "\n".join(texts))
