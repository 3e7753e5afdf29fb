"""Identities: time-ordered ids, the fire id that every node computes alike, names."""

from __future__ import annotations

import hashlib
import random

from mainspring.model.errors import EmptyName
from mainspring.model.instant import Ms

ScheduleId = str
RunId = str

_MASK_48 = (1 << 48) - 1
_MASK_62 = (1 << 62) - 1
#: Of an id's text: the time, the version and what does not fit behind them.
_FRONT = 19


def fire_id(schedule_id: ScheduleId, fire_key: str, fire_time: Ms) -> RunId:
    """The run id of a fire: UUIDv8 of the fire time and a hash of both, the same on every node."""
    digest = hashlib.sha256(f"{schedule_id}:{fire_key}".encode()).digest()
    return _uuid(fire_time, 8, int.from_bytes(digest[:10], "big"))


class IdFactory:
    """UUIDv7 ids that never go backwards inside one process, from an injected source of randomness."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last = (0, 0)

    def uuid7(self, now: Ms) -> str:
        last_ms, last_tail = self._last
        if now > last_ms:
            # The top bit stays clear so that counting up within a millisecond cannot overflow.
            self._last = (now, self._rng.getrandbits(73))
        else:
            self._last = (last_ms, last_tail + 1 + self._rng.getrandbits(24))
        return _uuid(self._last[0], 7, self._last[1])

    def uuid7s(self, now: Ms, count: int) -> list[str]:
        """So many of them, the same that one by one would be."""
        made = [self.uuid7(now)] if count else []
        ms, tail = self._last
        top, front, getrandbits = -1, "", self._rng.getrandbits
        for _ in range(count - 1):
            tail += 1 + getrandbits(24)
            if tail >> 62 != top:  # hardly ever
                top, front = tail >> 62, _uuid(ms, 7, tail)[:_FRONT]
            low = 1 << 63 | tail & _MASK_62
            made.append(f"{front}{low >> 48:04x}-{low & _MASK_48:012x}")
        self._last = ms, tail
        return made


def _uuid(ms: Ms, version: int, tail: int) -> str:
    """48 bits of time, then version and variant with 74 bits of `tail` around them."""
    tail &= (1 << 74) - 1
    value = (ms & _MASK_48) << 80 | version << 76 | (tail >> 62) << 64 | 0b10 << 62 | (tail & _MASK_62)
    text = value.to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def body_id(data: bytes) -> str:
    """The name of a payload: its own hash, so the same payload is stored once and can be verified."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def own_body_id(name: str, run_id: RunId) -> str:
    """The name of a payload that is not shared: whoever stores the same one need not wait for this one's commit."""
    return f"{name}~{run_id}"


def names_body(name: str, data: bytes) -> bool:
    """True when a payload is what its name says."""
    return name.partition("~")[0] == body_id(data)


def plain(text: str) -> str:
    """Text that every store can keep: lone surrogates written out, NUL made visible."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def check_name(value: str, *, field: str = "name") -> str:
    """A name people can read, type and put in a URL."""
    if not isinstance(value, str) or not value.strip():
        raise EmptyName(field, f"{value!r} is empty", "Give a name of 1 to 255 characters")
    if len(value) > 255:
        raise EmptyName(field, f"{len(value)} characters are too many", "Give a name of 1 to 255 characters")
    if not value.isprintable():
        raise EmptyName(field, f"{value!r} holds control characters", "Use printable characters only")
    return value
