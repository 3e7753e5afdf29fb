"""Signatures of calls to HTTP agents (Standard Webhooks), and the tokens of the agents' callbacks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms

#: Every signing secret begins with this.
WHSEC_PREFIX = "whsec_"
#: Fewer bytes are no signing secret. An empty one would let anyone sign.
MIN_SECRET_BYTES = 24
#: Digits of a timestamp in seconds, at most; the year 33658 has twelve.
MAX_TIMESTAMP_DIGITS = 12
#: Largest difference between a signature's timestamp and the time of its check.
TIMESTAMP_TOLERANCE_SECONDS = 300


def new_secret() -> str:
    """Return a new signing secret: `whsec_` and 32 random bytes in base64."""
    return WHSEC_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the bytes that a signing secret encodes. Raises: InvalidInput if it is not one, without its text."""
    try:
        key = base64.b64decode(secret.removeprefix(WHSEC_PREFIX), validate=True)
    except ValueError:  # binascii.Error, or a character outside ASCII
        key = b""
    if len(key) < MIN_SECRET_BYTES:
        raise InvalidInput(
            "secret",
            "is empty" if not secret else f"is not base64 of {MIN_SECRET_BYTES} bytes or more",
            "Give the whole signing secret of the schedule, whsec_…",
        )
    return key


def make_reference(key: bytes, data: bytes) -> str:
    """Return a name for `data`, made with a secret `key`: equal data have equal names. A name reveals no data."""
    return hmac.new(key, data, "sha256").hexdigest()[:40]


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a call with one secret: `v1,` and the base64 of an HMAC-SHA256.

    The HMAC is computed over the message id, the timestamp (in seconds) and the body.
    """
    text = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(decode_secret(secret), text, "sha256")).decode()


def sign_headers(secrets_in_force: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers that sign a call, name → value, with one signature for each secret.

    `message_id` identifies the call to the agent. `timestamp` is in seconds.
    """
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(secret, message_id, timestamp, body) for secret in secrets_in_force),
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Return True if a call was signed with `secret`, within five minutes of `now` (in seconds).

    Agents that are written in Python use this. It returns False also for headers that are missing or not valid.
    Raises: InvalidInput if `secret` is not a signing secret, for example because a variable is empty.
    """
    decode_secret(secret)
    given = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp, signatures = (given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (message_id and timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= MAX_TIMESTAMP_DIGITS):
        return False
    if abs(now - int(timestamp)) > TIMESTAMP_TOLERANCE_SECONDS:
        return False
    if not (message_id.isascii() and signatures.isascii()):
        return False
    expected = sign(secret, message_id, int(timestamp), body)
    return any(hmac.compare_digest(one, expected) for one in signatures.split(" "))


def callback_token(key: str, run_id: str, epoch: int, expires: Ms) -> str:
    """Return the token for the callbacks of one attempt, identified by run and epoch. It is valid until `expires`.

    `key` has the form of a signing secret. It is no schedule's, because agents know those.
    """
    return f"{epoch}.{expires}.{_token_mac(key, run_id, epoch, expires)}"


def read_token(token: str, keys: Sequence[str], run_id: str, now: Ms) -> int | None:
    """Return the epoch in a callback token; None if the token is forged, belongs to another run, or has expired."""
    epoch, _, rest = token.partition(".")
    expires, _, mac = rest.partition(".")
    if not (epoch.isascii() and epoch.isdigit() and expires.isascii() and expires.isdigit() and len(token) < 200):
        return None
    right = any(
        hmac.compare_digest(_token_mac(one, run_id, int(epoch), int(expires)).encode(), mac.encode()) for one in keys
    )
    return int(epoch) if right and now < int(expires) else None


def _token_mac(secret: str, run_id: str, epoch: int, expires: Ms) -> str:
    """Return the part of a callback token that only this service can compute: an HMAC over the other values."""
    key = hmac.digest(decode_secret(secret), b"mainspring callback", "sha256")
    return hmac.new(key, f"{run_id}.{epoch}.{expires}".encode(), hashlib.sha256).hexdigest()
