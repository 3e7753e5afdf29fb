"""What is read and kept of an agent's answer: bounded, decoded with care, secrets blacked out."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Iterable

from msgspec import Struct

from mainspring.model.ids import plain
from mainspring.model.instant import Ms, instant_ms

#: Compressed answers that grow more than so many times are not read on.
MAX_RATIO = 20
#: A small answer may grow to this, whatever the ratio.
SMALL = 16 * 1024
#: The longest wait an agent may ask for.
MAX_RETRY_AFTER: Ms = 86_400_000
BLACK = "[redacted]"

_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_NAMED = re.compile(
    r'(?i)("[^"]*(?:password|passwd|secret|token|api[_-]?key|authorization|credential|cookie)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"?'
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}")
_WHSEC = re.compile(r"whsec_[A-Za-z0-9+/=]+")


class Answer(Struct, frozen=True):
    """The part of a body that was read."""

    data: bytes
    read: int
    truncated: bool


async def read_bounded(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> Answer:
    """Read and decompress at most `limit` bytes; what goes beyond that, or beyond the ratio, is left."""
    inflate = zlib.decompressobj(_WINDOW[encoding]) if encoding in _WINDOW else None
    found = bytearray()
    read = 0
    async for chunk in chunks:
        read += len(chunk)
        if inflate is None:
            found += chunk[: limit - len(found)]
        else:
            most = min(limit, max(SMALL, read * MAX_RATIO))
            try:
                found += inflate.decompress(chunk, max(1, most - len(found) + 1))
            except zlib.error:
                return Answer(bytes(found[:limit]), read, truncated=True)
            if inflate.unconsumed_tail or len(found) > most:
                return Answer(bytes(found[:most]), read, truncated=True)
        if read > limit:
            return Answer(bytes(found[:limit]), read, truncated=True)
    return Answer(bytes(found), read, truncated=False)


def as_text(data: bytes, charset: str | None, limit: int) -> str:
    """Text that every store can keep."""
    try:
        text = data[:limit].decode(charset or "utf-8", "replace")
    except LookupError:
        text = data[:limit].decode("utf-8", "replace")
    return plain(text)


def blacken(text: str, known: Iterable[str] = ()) -> str:
    """The text without the values we sent, and without what looks like a secret."""
    for value in known:
        for part in {value, value.rpartition(" ")[2]}:
            if len(part) >= 4:
                text = text.replace(part, BLACK)
    text = _NAMED.sub(rf'\1"{BLACK}"', text)
    text = _BEARER.sub(rf"\1 {BLACK}", text)
    return _WHSEC.sub(BLACK, text)


def retry_after(value: str | None, now: Ms) -> Ms | None:
    """Milliseconds to wait, from seconds or a date; None when it says nothing we understand."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 12:
        return min(int(text) * 1000, MAX_RETRY_AFTER)
    from email.utils import parsedate_to_datetime  # few agents say a date

    try:
        at = parsedate_to_datetime(text)
        return min(max(0, instant_ms(at) - now), MAX_RETRY_AFTER)
    except (ValueError, TypeError, IndexError):
        return None
