"""The value type of the tables of mutants: one mistake, and the tests that must catch it."""

from __future__ import annotations

from typing import NamedTuple

#: Folder → the part of `make chaos` that tries its mutants; all others are tried in the part core.
PART_OF_FOLDER = {
    "backends/postgres/": "postgres",
    "backends/redis/": "redis",
    "agents/": "service",
    "api/": "service",
    "server/": "service",
    "service/": "service",
    "executors/http": "service",
}


class Mutant(NamedTuple):
    """One mistake: in `file` the text `old`, which must occur once, becomes `new`; then one of `tests` must fail."""

    name: str
    mistake: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    #: Further edits that belong to the mistake: file, old and new text.
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def part(self) -> str:
        """The part of `make chaos` that tries this mutant: core, postgres, redis or service."""
        package = self.file.removeprefix("src/mainspring/")
        for folder, part in PART_OF_FOLDER.items():
            if package.startswith(folder):
                return part
        return "core"

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All edits that make the mistake: file, old and new text."""
        return ((self.file, self.old, self.new), *self.also)
