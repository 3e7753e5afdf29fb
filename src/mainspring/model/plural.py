"""Numbers with their nouns, for messages."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 run", "2 runs". Every `noun` given must form its plural with "s"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
