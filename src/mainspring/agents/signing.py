"""Signatures of our calls (Standard Webhooks) and the short-lived tokens of callbacks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

from mainspring.model.instant import Ms

PREFIX = "whsec_"
#: How far a signature's timestamp may be off, in seconds.
TOLERANCE = 300


def new_secret() -> str:
    """A signing secret of 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes a secret stands for."""
    return base64.b64decode(secret.removeprefix(PREFIX))


def reference(key: bytes, data: bytes) -> str:
    """A name that is the same for the same data and tells nothing of it to whoever has no key."""
    return hmac.new(key, data, "sha256").hexdigest()[:40]


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id, timestamp and body."""
    text = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key_of(secret), text, "sha256")).decode()


def signed(of: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers; during a rotation one signature for each secret."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, message_id, timestamp, body) for secret in of),
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """For agents in Python: True when a call was signed with this secret within five minutes of `now` (seconds)."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        timestamp = int(given["webhook-timestamp"])
        expected = signature(secret, given["webhook-id"], timestamp, body)
    except (KeyError, ValueError, binascii.Error):
        return False
    if abs(now - timestamp) > TOLERANCE:
        return False
    return any(hmac.compare_digest(one, expected) for one in given.get("webhook-signature", "").split(" "))


def callback_token(secret: str, run_id: str, epoch: int, expires: Ms) -> str:
    """Good for the callbacks of one attempt until an instant."""
    return f"{epoch}.{expires}.{_token_mac(secret, run_id, epoch, expires)}"


def read_token(token: str, of: Sequence[str], run_id: str, now: Ms) -> int | None:
    """The epoch a token was given for; None when it is not ours, of another run, or over."""
    epoch, _, rest = token.partition(".")
    expires, _, mac = rest.partition(".")
    if not (epoch.isascii() and epoch.isdigit() and expires.isascii() and expires.isdigit() and len(token) < 200):
        return None
    right = any(
        hmac.compare_digest(_token_mac(one, run_id, int(epoch), int(expires)).encode(), mac.encode()) for one in of
    )
    return int(epoch) if right and now < int(expires) else None


def _token_mac(secret: str, run_id: str, epoch: int, expires: Ms) -> str:
    key = hmac.digest(key_of(secret), b"mainspring callback", "sha256")
    return hmac.new(key, f"{run_id}.{epoch}.{expires}".encode(), hashlib.sha256).hexdigest()
