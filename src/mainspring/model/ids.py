"""Ids of runs and payloads, and checks of names and texts.

Run ids sort by time: by the fire time for a run of a fire, else by the time of creation. Every instance
computes the same id for the run of one fire.
"""

from __future__ import annotations

import hashlib
import random
import re

from mainspring.model.errors import EmptyName
from mainspring.model.instant import Ms

ScheduleId = str
RunId = str

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Finds what makes a text unfit as the last part of a URL.
_NOT_IN_URLS = re.compile(r"[/?#]|\A\.{1,2}\Z")
_MASK_48 = (1 << 48) - 1
_MASK_62 = (1 << 62) - 1
#: The number of leading characters that `uuid7s` reuses for the next id: the time, the version, 12 random bits and the
#: dash behind them.
_FRONT_CHARS = 19
#: Code of a character → the text that is shown for it.
_TERMINAL_CONTROLS = {
    code: ascii(chr(code)).strip("'")
    for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def is_id(text: str) -> bool:
    """Return True if the text has the form of an id of a schedule or run, a UUID in lower case."""
    return _ID.fullmatch(text) is not None


def fire_id(schedule_id: ScheduleId, fire_key: str, fire_time: Ms) -> RunId:
    """Return the id of the run for a fire: a UUIDv8 of the fire time and a hash of schedule id and fire key.

    Why: equal arguments give equal ids in every instance, so two instances that plan one fire cannot create two runs.
    """
    digest = hashlib.sha256(f"{schedule_id}:{fire_key}".encode()).digest()
    return _uuid(fire_time, 8, int.from_bytes(digest[:10], "big"))


def first_id_at(at: Ms) -> RunId:
    """Return the lowest id of a run whose time is `at`, to read the runs of fires from a time on."""
    return _uuid(at, 0, 0)


class IdFactory:
    """Factory of UUIDv7 ids. Each id is greater than all ids that the factory made before.

    `rng` is a parameter so that tests and simulations can repeat the ids.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last = (0, 0)

    def uuid7(self, now: Ms) -> str:
        """Return a new id with the time `now`, or with the time of the previous id if that is later."""
        last_ms, last_tail = self._last
        if now > last_ms:
            # The top bit stays clear so that counting up within a millisecond cannot overflow.
            self._last = (now, self._rng.getrandbits(73))
        else:
            self._last = (last_ms, last_tail + 1 + self._rng.getrandbits(24))
        return _uuid(self._last[0], 7, self._last[1])

    def uuid7s(self, now: Ms, count: int) -> list[str]:
        """Return the `count` ids that `count` calls of `uuid7(now)` would return, in less time."""
        made = [self.uuid7(now)] if count else []
        ms, tail = self._last
        top, front, getrandbits = -1, "", self._rng.getrandbits
        for _ in range(count - 1):
            tail += 1 + getrandbits(24)
            if tail >> 62 != top:  # rare: a carry into the leading characters
                top, front = tail >> 62, _uuid(ms, 7, tail)[:_FRONT_CHARS]
            low = 1 << 63 | tail & _MASK_62
            made.append(f"{front}{low >> 48:04x}-{low & _MASK_48:012x}")
        self._last = ms, tail
        return made


def _uuid(ms: Ms, version: int, tail: int) -> str:
    """Return a UUID as text, made of the time `ms`, the version, and the lower 74 bits of `tail` (random or a hash).

    In order: 48 bits of time, the version, the upper 12 bits of `tail`, the variant, the lower 62 bits of `tail`.
    """
    tail &= (1 << 74) - 1
    value = (ms & _MASK_48) << 80 | version << 76 | (tail >> 62) << 64 | 0b10 << 62 | (tail & _MASK_62)
    text = value.to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def body_id(data: bytes) -> str:
    """Return the id of the payload `data`: a hash. So equal payloads are stored once, and damage can be detected."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def unshared_body_id(shared_id: str, run_id: RunId) -> str:
    """Return an id for a payload that only one run uses: `shared_id`, which `body_id` returned, and the run's id.

    Used for payloads that are stored inside a caller's transaction. Why: with the shared id, every other connection
    that stores an equal payload would wait for the caller's commit.
    """
    return f"{shared_id}~{run_id}"


def is_body_id_of(name: str, data: bytes) -> bool:
    """Return True if the id `name` belongs to the payload `data`, as `body_id` or `unshared_body_id` makes it."""
    return name.partition("~")[0] == body_id(data)


def storable_text(text: str) -> str:
    """Return the text in a form that every store accepts: a lone surrogate is escaped, NUL is replaced by U+2400."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def printable_text(text: str) -> str:
    """Return the text with `\\x1b` and the like in place of characters that change how a terminal shows other text.

    These are control characters, except line breaks and tabs, and marks of the writing direction. Why: an agent's
    answer is shown in logs and by commands, where an escape sequence could move the cursor or hide lines.
    """
    return text.translate(_TERMINAL_CONTROLS)


def check_name(value: str, *, field: str = "name") -> str:
    """Return the name `value` unchanged if it has 1 to 255 printable characters, not only spaces.

    Raises `EmptyName` for any other value; `field` names the value in the error. Why: people read and type names, and
    URLs carry them.
    """
    if not isinstance(value, str) or not value.strip():
        raise EmptyName(field, f"{value!r} is empty", "Give a name of 1 to 255 characters")
    if len(value) > 255:
        raise EmptyName(field, f"{len(value)} characters are too many", "Give a name of 1 to 255 characters")
    if not value.isprintable():
        raise EmptyName(field, f"{value!r} holds control characters", "Use printable characters only")
    return value


def check_schedule_name(value: str, *, field: str = "name") -> str:
    """Return the name `value` of a new schedule unchanged if it can be the last part of a URL.

    Raises `EmptyName` for a name that `check_name` refuses, or that contains `/`, `?` or `#`, is `.` or `..`, or has
    the form of an id. Why: under such a name, the API could not find the schedule. Names that are stored keep working.
    """
    check_name(value, field=field)
    if _NOT_IN_URLS.search(value) is None and _ID.fullmatch(value.lower()) is None:
        return value
    wrong = sorted(set(value) & set("/?#"))
    if wrong:
        problem = f"{value!r} contains {' and '.join(wrong)}, which a URL gives another meaning"
        raise EmptyName(field, problem, "Write for example a-b")
    if value in (".", ".."):
        raise EmptyName(field, f"{value!r} is no name in a URL", "Write for example a-b")
    raise EmptyName(field, f"{value!r} has the form of an id", "Choose a name that a person can read")
