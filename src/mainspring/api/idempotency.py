"""Idempotency keys: a repeated request gets the answer of the first one, on every instance, for a day."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.problems import Fault, Refused
from mainspring.model.keyvalue import IDEMPOTENCY_KIND, KeyValue

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255
_VALID_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_LENGTH}}}")
#: How long an answer is stored.
ANSWER_TTL_MS = 24 * 3_600_000
#: How long a request without an answer blocks its repetitions; after that its instance is taken for dead.
IN_FLIGHT_TTL_MS = 60_000


class Record(Struct, omit_defaults=True):
    """What is stored for an idempotency key: the digest of the first request, and its answer.

    `status` 0: there is no answer yet. `headers`: those of the answer that are sent again. `body`: in base64.
    """

    request: str
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""


async def with_idempotency_key(
    host: EngineHost, request: Request, data: bytes, answer: Callable[[], Awaitable[Response]]
) -> Response:
    """Return `answer()`, or the stored answer if the request's idempotency key was used before.

    `data` is the raw body. If `answer` raises, nothing is stored and the key can be used again: a refused request
    changed nothing. Raises: Refused, with 422 for a malformed key or the key of another request, with 409 while the
    first request with this key has no answer.
    """
    given = request.headers.get(HEADER)
    if given is None:
        return await answer()
    key = given.strip()
    if not _VALID_KEY.fullmatch(key):
        fault = Fault(f"is not a key of 1 to {MAX_KEY_LENGTH} visible ASCII characters", parameter=HEADER)
        raise Refused(422, "invalid", f"{HEADER}: {fault.detail}", [fault])
    digest = _digest(request.method.encode(), request.url.path.encode(), request.url.query.encode(), data)
    name = _digest(b"", key.encode())
    mine = Record(digest)
    if not await _claim(host, name, mine):
        stored = await _find(host, name)
        if stored is not None:
            return _replay(stored, mine)
        if not await _claim(host, name, mine):  # removed between the two calls, and claimed by another request since
            raise _in_flight()
    try:
        response = await answer()
    except BaseException:
        await host.call(lambda runtime: runtime.commands.remove(IDEMPOTENCY_KIND, [name]))
        raise
    await _store(host, name, digest, response)
    return response


async def _claim(host: EngineHost, name: str, record: Record) -> bool:
    """Store `record`, which has no answer yet, under `name`; return False if a record is there already.

    The record expires after `IN_FLIGHT_TTL_MS`.
    """
    item = KeyValue(kind=IDEMPOTENCY_KIND, id=name, data=_text(record), expires_at=host.now() + IN_FLIGHT_TTL_MS)
    return (await host.call(lambda runtime: runtime.commands.put([item])))[0]


async def _find(host: EngineHost, name: str) -> Record | None:
    found = await host.call(lambda runtime: runtime.commands.find_values(IDEMPOTENCY_KIND, [name]))
    return msgspec.json.decode(found[name].data, type=Record) if name in found else None


async def _store(host: EngineHost, name: str, digest: str, response: Response) -> None:
    """Replace the record under `name` by one with the answer, which is kept for `ANSWER_TTL_MS`."""
    headers = {key: response.headers[key] for key in ("content-type", "location", "etag") if key in response.headers}
    body = base64.b64encode(bytes(response.body)).decode()
    record = Record(digest, response.status_code, headers, body)
    item = KeyValue(kind=IDEMPOTENCY_KIND, id=name, data=_text(record), expires_at=host.now() + ANSWER_TTL_MS)
    await host.call(lambda runtime: runtime.commands.put([item], replace=True))


def _replay(stored: Record, mine: Record) -> Response:
    """Return the stored answer. Raises: Refused if the key belongs to another request than `mine`, or has no answer."""
    if stored.request != mine.request:
        fault = Fault("was used for another request", parameter=HEADER, suggestion="Use a new key for a new request")
        raise Refused(422, "idempotency-mismatch", f"{HEADER}: {fault.detail}", [fault])
    if not stored.status:
        raise _in_flight()
    return Response(base64.b64decode(stored.body), stored.status, {**stored.headers, "Idempotency-Replayed": "true"})


def _in_flight() -> Refused:
    """Return the refusal of a request that repeats one which is still under way."""
    return Refused(
        409, "idempotency-in-flight", "The first request with this key has no answer yet", headers={"Retry-After": "1"}
    )


def _text(record: Record) -> str:
    return msgspec.json.encode(record).decode()


def _digest(*parts: bytes) -> str:
    """Return the SHA-256 of the parts. Each part's length is hashed before it: ("ab", "c") is not ("a", "bc")."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
