"""Responses of HTTP agents: read within bounds, decoded to storable text, with secrets redacted."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Iterable

from msgspec import Struct

from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms, instant_ms

#: A compressed response is not read further once decompressing has made it larger by this factor.
MAX_COMPRESSION_RATIO = 20
#: Up to this size in bytes, a compressed response may grow by any factor.
RATIO_FREE_BYTES = 16 * 1024
#: Longest wait that an agent may request with Retry-After, in milliseconds.
MAX_RETRY_AFTER: Ms = 86_400_000
REDACTED = "[redacted]"

#: Content-Encoding → zlib's parameter `wbits`, which selects the format.
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: A JSON string that is the value of a name such as "apiKey"; group 1 is all before the value.
_NAMED = re.compile(
    r'(?i)("[^"]*(?:password|passwd|secret|token|api[_-]?key|authorization|credential|cookie)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"?'
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}")
_WHSEC = re.compile(r"whsec_[A-Za-z0-9+/=]+")


class Answer(Struct, frozen=True):
    """The part of a response body that was read: its bytes, decompressed, and the number of bytes received."""

    data: bytes
    read: int
    #: True if reading stopped at a limit, or at bytes that cannot be decompressed.
    truncated: bool


async def read_bounded(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> Answer:
    """Read a body and return it decompressed: at most `limit` bytes, both as received and as decompressed.

    `encoding` is the Content-Encoding in lower case; a body in an unknown one is returned as it was received. A
    compressed body that grows too much is cut at `MAX_COMPRESSION_RATIO`.
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
    """Decode at most `limit` bytes to text that every store can keep; no or an unknown charset counts as UTF-8."""
    try:
        text = data[:limit].decode(charset or "utf-8", "replace")
    except LookupError:
        text = data[:limit].decode("utf-8", "replace")
    return storable_text(text)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return a text with `[redacted]` in place of the `known` secrets and of all that looks like a secret.

    Of a known secret such as "Bearer abcd", the part after the last space is redacted by itself, too. Secrets of fewer
    than four characters stay.
    """
    for value in known:
        for part in {value, value.rpartition(" ")[2]}:
            if len(part) >= 4:
                text = text.replace(part, REDACTED)
    text = _NAMED.sub(rf'\1"{REDACTED}"', text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    return _WHSEC.sub(REDACTED, text)


def parse_retry_after(value: str | None, now: Ms) -> Ms | None:
    """Return the milliseconds to wait by the value of a Retry-After header, which has seconds or a date.

    At most `MAX_RETRY_AFTER`. None without a header, or if the value is neither.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 12:
        return min(int(text) * 1000, MAX_RETRY_AFTER)
    from email.utils import parsedate_to_datetime  # few agents send a date

    try:
        at = parsedate_to_datetime(text)
        return min(max(0, instant_ms(at) - now), MAX_RETRY_AFTER)
    except (ValueError, TypeError, IndexError):
        return None
