"""Checks of a broker's arguments, with the same error texts in every broker."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.errors import InvalidInput, PayloadTooLarge
from mainspring.ports.broker import DEAD_LETTER_TOPIC, MAX_BROKER_NAME_CHARS, BrokerLimits


def check_topic(topic: str) -> None:
    """Refuse a topic that is no name, or that holds the dead letters: these have verbs of their own."""
    check_name(topic, "topic")
    if topic == DEAD_LETTER_TOPIC:
        raise InvalidInput(
            "topic", f"{DEAD_LETTER_TOPIC!r} holds the dead letters", "Read them by dead(), move them by replay()"
        )


def check_name(name: str, field: str) -> None:
    """Refuse a name of a topic, group or consumer that is empty, too long or not printable; `field`: for the error."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_BROKER_NAME_CHARS or not name.isprintable():
        raise InvalidInput(
            field, f"{name!r:.40} is not a name", f"Use 1 to {MAX_BROKER_NAME_CHARS} printable characters"
        )


def check_bodies(bodies: Sequence[str], limits: BrokerLimits) -> None:
    """Refuse messages that are no text, or longer than the limit."""
    for body in bodies:
        if not isinstance(body, str):
            raise InvalidInput("bodies", f"{type(body).__name__} is not text", "Encode it as JSON first")
        if len(body) > limits.body:
            raise PayloadTooLarge(
                "bodies", f"a message of {len(body)} characters is over the limit", f"Send at most {limits.body}"
            )


def check_limit(limit: int) -> None:
    """Refuse a number of messages for one batch that is out of range."""
    if not 1 <= limit <= 10_000:
        raise InvalidInput("limit", f"{limit!r} is out of range", "Use 1 to 10000")
