"""What a mutant is."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake: in `file` the text `old`, which is there once, becomes `new`; some of `tests` must fail."""

    name: str
    mistake: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    #: More of the same mistake: file, old and new.
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """Every change of a text that makes the mistake."""
        return ((self.file, self.old, self.new), *self.also)
