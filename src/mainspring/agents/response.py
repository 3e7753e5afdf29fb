"""Responses of HTTP agents: read them within bounds, decode them to storable text, and redact secrets in them."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Iterable

from msgspec import Struct

from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms, instant_ms

#: Reading of a compressed response stops once its decompressed size is larger than the received size by this factor.
MAX_COMPRESSION_RATIO = 20
#: A response that decompresses to at most this size may grow by any factor.
RATIO_FREE_BYTES = 16 * 1024
#: The longest delay that an agent may ask for with Retry-After.
MAX_RETRY_AFTER_MS: Ms = 86_400_000
REDACTED = "[redacted]"
#: Marks the places of known secrets until all are found. It is one character, which no stored text has, so that a
#: secret such as "acte" does not match in REDACTED, again and again.
_PLACE = "\0"

#: Content-Encoding → zlib's parameter `wbits`, which selects the format.
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: The name of a JSON member (group 1) and the beginning of its value, which is a string. The bound, and repetitions
#: that never backtrack (`*+`), keep a search linear: a text of quotation marks must not block the event loop.
_MEMBER = re.compile(r'"([^"]{1,200})"\s*+:\s*+"')
_SECRET_NAME = re.compile(r"(?i)password|passwd|secret|token|api[_-]?key|authorization|credential|cookie")
#: The rest of a JSON string after its first quotation mark, also if the text ends inside it. It never backtracks.
_STRING_REST = re.compile(r'(?s:[^"\\]|\\.)*+\\?"?')
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s++[\w.~+/=-]{6,}")
_WHSEC = re.compile(r"whsec_[A-Za-z0-9+/=]+")


class Answer(Struct, frozen=True):
    """The part of a response body that was read: the bytes after decompression, and the number of bytes received."""

    data: bytes
    read: int
    #: True if reading stopped at a limit, or at bytes that cannot be decompressed.
    truncated: bool


async def read_bounded(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> Answer:
    """Read a body and return it decompressed. Stop when more than `limit` bytes are received or decompressed.

    `encoding` is the Content-Encoding in lower case; a body in an unknown encoding is returned as it was received.
    Reading also stops at bytes that cannot be decompressed, and where the decompressed body has more than
    `RATIO_FREE_BYTES` and more than `MAX_COMPRESSION_RATIO` times the bytes received.
    """
    inflate = zlib.decompressobj(_WINDOW[encoding]) if encoding in _WINDOW else None
    found = bytearray()
    read = 0
    async for chunk in chunks:
        read += len(chunk)
        if inflate is None:
            found += chunk[: limit - len(found)]
        else:
            most = min(limit, max(RATIO_FREE_BYTES, read * MAX_COMPRESSION_RATIO))
            try:
                found += inflate.decompress(chunk, max(1, most - len(found) + 1))
            except zlib.error:
                return Answer(bytes(found[:limit]), read, truncated=True)
            if inflate.unconsumed_tail or len(found) > most:
                return Answer(bytes(found[:most]), read, truncated=True)
        if read > limit:
            return Answer(bytes(found[:limit]), read, truncated=True)
    return Answer(bytes(found), read, truncated=False)


def decode_text(data: bytes, charset: str | None, limit: int) -> str:
    """Decode the first `limit` bytes to text that every store can hold. A `charset` that is unknown counts as UTF-8."""
    try:
        text = data[:limit].decode(charset or "utf-8", "replace")
    except LookupError:
        text = data[:limit].decode("utf-8", "replace")
    return storable_text(text)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with `[redacted]` in place of the `known` secrets and of what looks like a secret.

    The string value of a JSON member such as "apiKey", the text after "Bearer" or "Basic", and `whsec_…` look like one.
    If a known secret contains a space, as in "Bearer abcd", the part after the last space is a known secret, too. Known
    secrets of fewer than four characters are not redacted. The time is linear in the length of the text.
    """
    parts = {part for value in known for part in (value, value.rpartition(" ")[2]) if len(part) >= 4}
    for part in sorted(parts, key=len, reverse=True):  # the longest first: another may be its beginning
        text = text.replace(part, _PLACE)
    text = _redact_members(text.replace(_PLACE, REDACTED) if parts else text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    return _WHSEC.sub(REDACTED, text)


def _redact_members(text: str) -> str:
    """Return a text with `[redacted]` in place of the string values of JSON members that have a secret's name."""
    parts = []
    kept_to = 0
    at = 0
    while member := _MEMBER.search(text, at):
        at = member.end() - 1  # the quotation mark before the value
        if _SECRET_NAME.search(member[1]):
            parts += [text[kept_to:at], f'"{REDACTED}"']
            rest = _STRING_REST.match(text, member.end())
            kept_to = at = rest.end() if rest else member.end()
    return "".join([*parts, text[kept_to:]])


def parse_retry_after(value: str | None, now: Ms) -> Ms | None:
    """Return the delay from `now` that a Retry-After header asks for, at most `MAX_RETRY_AFTER_MS`; None if none.

    `value`: the header's text, a number of seconds or a date; None without the header. Other text gives None, too.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 12:
        return min(int(text) * 1000, MAX_RETRY_AFTER_MS)
    from email.utils import parsedate_to_datetime  # few agents send a date

    try:
        at = parsedate_to_datetime(text)
        return min(max(0, instant_ms(at) - now), MAX_RETRY_AFTER_MS)
    except (ValueError, TypeError, IndexError):
        return None
