"""Checks of the arguments of broker methods, with the same error texts in every broker."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.errors import InvalidInput, PayloadTooLarge
from mainspring.ports.broker import DEAD_LETTER_TOPIC, MAX_BROKER_NAME_CHARS, BrokerLimits


def check_topic(topic: str) -> None:
    """Raise `InvalidInput` if `topic` is no valid name, or is the topic of dead letters, which has its own methods."""
    check_name(topic, "topic")
    if topic == DEAD_LETTER_TOPIC:
        raise InvalidInput(
            "topic",
            f"{DEAD_LETTER_TOPIC!r} holds the dead letters",
            "Read them with dead_letters(), publish them again with replay()",
        )


def check_name(name: str, field: str) -> None:
    """Raise `InvalidInput` if the name of a topic, group or consumer is no text, empty, too long or not printable.

    `field`: the name of the argument, for the error text.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_BROKER_NAME_CHARS or not name.isprintable():
        raise InvalidInput(
            field, f"{name!r:.40} is not a name", f"Use 1 to {MAX_BROKER_NAME_CHARS} printable characters"
        )


def check_bodies(bodies: Sequence[str], limits: BrokerLimits) -> None:
    """Check the bodies of messages. Raises: `InvalidInput` if one is no text, `PayloadTooLarge` if one is too long."""
    for body in bodies:
        if not isinstance(body, str):
            raise InvalidInput("bodies", f"{type(body).__name__} is not text", "Encode it as JSON first")
        if len(body) > limits.body:
            raise PayloadTooLarge(
                "bodies", f"a message of {len(body)} characters is over the limit", f"Send at most {limits.body}"
            )


def check_limit(limit: int) -> None:
    """Raise `InvalidInput` unless `limit`, the greatest number of messages in a batch, is 1 to 10000."""
    if not 1 <= limit <= 10_000:
        raise InvalidInput("limit", f"{limit!r} is out of range", "Use 1 to 10000")
