"""Ids: time-ordered run ids, fire ids that every node computes alike, payload ids; and checks of names and texts."""

from __future__ import annotations

import hashlib
import random

from mainspring.model.errors import EmptyName
from mainspring.model.instant import Ms

ScheduleId = str
RunId = str

_MASK_48 = (1 << 48) - 1
_MASK_62 = (1 << 62) - 1
#: The number of leading characters of an id that `uuid7s` reuses: the time, the version and the top 12 random bits,
#: with the dash behind them.
_FRONT_CHARS = 19


def fire_id(schedule_id: ScheduleId, fire_key: str, fire_time: Ms) -> RunId:
    """Return the run id of a fire: a UUIDv8 of the fire time and a hash of the schedule and fire key.

    Every node computes the same id, so two nodes that plan one fire cannot create two runs.
    """
    digest = hashlib.sha256(f"{schedule_id}:{fire_key}".encode()).digest()
    return _uuid(fire_time, 8, int.from_bytes(digest[:10], "big"))


class IdFactory:
    """A source of UUIDv7 ids that never go backwards inside one process. The randomness is injected."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last = (0, 0)

    def uuid7(self, now: Ms) -> str:
        """Return a new id with the time `now`, or that of the previous id if the clock went back."""
        last_ms, last_tail = self._last
        if now > last_ms:
            # The top bit stays clear so that counting up within a millisecond cannot overflow.
            self._last = (now, self._rng.getrandbits(73))
        else:
            self._last = (last_ms, last_tail + 1 + self._rng.getrandbits(24))
        return _uuid(self._last[0], 7, self._last[1])

    def uuid7s(self, now: Ms, count: int) -> list[str]:
        """Return `count` new ids, equal to those that `count` calls of `uuid7` would return, but faster."""
        made = [self.uuid7(now)] if count else []
        ms, tail = self._last
        top, front, getrandbits = -1, "", self._rng.getrandbits
        for _ in range(count - 1):
            tail += 1 + getrandbits(24)
            if tail >> 62 != top:  # rare: a carry into the front part
                top, front = tail >> 62, _uuid(ms, 7, tail)[:_FRONT_CHARS]
            low = 1 << 63 | tail & _MASK_62
            made.append(f"{front}{low >> 48:04x}-{low & _MASK_48:012x}")
        self._last = ms, tail
        return made


def _uuid(ms: Ms, version: int, tail: int) -> str:
    """Return a UUID as text: 48 bits of time, the version, 12 bits of `tail`, the variant, 62 bits of `tail`."""
    tail &= (1 << 74) - 1
    value = (ms & _MASK_48) << 80 | version << 76 | (tail >> 62) << 64 | 0b10 << 62 | (tail & _MASK_62)
    text = value.to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def body_id(data: bytes) -> str:
    """Return the id of a payload: its hash. So equal payloads are stored once, and a payload can be verified."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def unshared_body_id(shared_id: str, run_id: RunId) -> str:
    """Return the id of a payload that only one run uses, from its hash and the run's id.

    Used inside a caller's transaction: another connection that stores an equal payload need not wait for its commit.
    """
    return f"{shared_id}~{run_id}"


def is_body_id_of(name: str, data: bytes) -> bool:
    """Return True if an id was made from this payload, shared or not."""
    return name.partition("~")[0] == body_id(data)


def storable_text(text: str) -> str:
    """Return the text in a form that every store accepts: lone surrogates escaped, NUL replaced by its symbol."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def check_name(value: str, *, field: str = "name") -> str:
    """Return a name if people can read and type it, and a URL can carry it.

    Raises `EmptyName` for a name that is empty, longer than 255 characters or not printable.
    """
    if not isinstance(value, str) or not value.strip():
        raise EmptyName(field, f"{value!r} is empty", "Give a name of 1 to 255 characters")
    if len(value) > 255:
        raise EmptyName(field, f"{len(value)} characters are too many", "Give a name of 1 to 255 characters")
    if not value.isprintable():
        raise EmptyName(field, f"{value!r} holds control characters", "Use printable characters only")
    return value
