"""What every broker refuses in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.errors import InvalidInput, PayloadTooLarge
from mainspring.ports.broker import DEAD, MAX_NAME, Limits


def check_topic(topic: str) -> None:
    """A name to publish to or read from; the dead letters have verbs of their own."""
    check_word(topic, "topic")
    if topic == DEAD:
        raise InvalidInput("topic", f"{DEAD!r} holds the dead letters", "Read them by dead(), move them by replay()")


def check_word(name: str, field: str) -> None:
    """A name of a topic, group or consumer."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidInput(field, f"{name!r:.40} is not a name", f"Use 1 to {MAX_NAME} printable characters")


def check_bodies(bodies: Sequence[str], limits: Limits) -> None:
    """Texts that fit."""
    for body in bodies:
        if not isinstance(body, str):
            raise InvalidInput("bodies", f"{type(body).__name__} is not text", "Encode it as JSON first")
        if len(body) > limits.body:
            raise PayloadTooLarge(
                "bodies", f"a message of {len(body)} characters is over the limit", f"Send at most {limits.body}"
            )


def check_limit(limit: int) -> None:
    """How many at once."""
    if not 1 <= limit <= 10_000:
        raise InvalidInput("limit", f"{limit!r} is out of range", "Use 1 to 10000")
