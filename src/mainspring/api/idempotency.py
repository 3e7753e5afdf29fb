"""Idempotency keys: for a day, every instance answers a repeated request with the stored answer to the first.

A repetition that comes while the first request is still being answered is refused (409).
"""

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

from mainspring.api.callers import key_id_of
from mainspring.api.problems import Fault, Refused
from mainspring.model.errors import OutcomeUnknown
from mainspring.model.keyvalue import IDEMPOTENCY_KIND, KeyValue

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost

IDEMPOTENCY_HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 255
#: Field of an answer with a signing secret, which is shown in the first answer only and not stored with it.
_SECRET_FIELD = "signingSecret"  # noqa: S105 - the name of a field
SHOWN_ONCE = "The signing secret was shown once, in the first answer to this request. Rotate it to get a new one"
_VALID_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_CHARS}}}")
#: How long an answer is stored.
ANSWER_TTL_MS = 24 * 3_600_000
#: How long a request without a stored answer blocks its repetitions. After that, its instance counts as dead, and the
#: key can be used again.
IN_FLIGHT_TTL_MS = 60_000


class Record(Struct, omit_defaults=True):
    """What is stored for an idempotency key: the first request with this key, and the answer to it.

    `request` is a digest of method, URL and body of the request. `status` is the status of the answer; 0 while there is
    no answer. `headers` holds those headers of the answer that a repeated request gets again. `body` is the answer's
    body in base64.
    """

    request: str
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""


async def with_idempotency_key(
    host: EngineHost, request: Request, data: bytes, answer: Callable[[], Awaitable[Response]]
) -> Response:
    """Return `answer()` and store it; if the request's idempotency key was used before, return the stored answer.

    A key is known to one namespace and API key only. In place of a signing secret, the stored answer has a warning. A
    request without a key always gets `answer()`. `data` is the raw body. If `answer` raises, no answer is stored, and
    the key can be used again at once. But after `OutcomeUnknown` the key stays taken for `IN_FLIGHT_TTL_MS`, as after
    the death of an instance, because the change may be stored. Raises: Refused, with 422 for a malformed key or the key
    of a different request, and with 409 while the first request with this key has no stored answer.
    """
    given = request.headers.get(IDEMPOTENCY_HEADER)
    if given is None:
        return await answer()
    key = given.strip()
    if not _VALID_KEY.fullmatch(key):
        fault = Fault(f"is not a key of 1 to {MAX_KEY_CHARS} visible ASCII characters", parameter=IDEMPOTENCY_HEADER)
        raise Refused(422, "invalid", f"{IDEMPOTENCY_HEADER}: {fault.detail}", [fault])
    digest = _digest(request.method.encode(), request.url.path.encode(), request.url.query.encode(), data)
    # Of the namespace and the API key, so that no other caller gets the answer.
    name = _digest(host.settings.namespace.encode(), key_id_of(request).encode(), key.encode())
    mine = Record(digest)
    if not await _claim(host, name, mine):
        stored = await _find(host, name)
        if stored is not None:
            return _replay(stored, mine)
        if not await _claim(host, name, mine):  # removed between the two calls, and claimed by another request since
            raise _in_flight()
    try:
        response = await answer()
    except OutcomeUnknown:
        raise  # a repetition might act twice
    except BaseException:
        await host.call(lambda runtime: runtime.commands.remove(IDEMPOTENCY_KIND, [name]))
        raise
    await _store(host, name, digest, response)
    return response


async def _claim(host: EngineHost, name: str, record: Record) -> bool:
    """Store `record`, which has no answer yet, under `name`. Return False, and store nothing, if `name` has a record.

    `name` is the digest of an idempotency key. The record expires after `IN_FLIGHT_TTL_MS`.
    """
    item = KeyValue(kind=IDEMPOTENCY_KIND, id=name, data=_text(record), expires_at=host.now() + IN_FLIGHT_TTL_MS)
    return (await host.call(lambda runtime: runtime.commands.put([item])))[0]


async def _find(host: EngineHost, name: str) -> Record | None:
    found = await host.call(lambda runtime: runtime.commands.find_values(IDEMPOTENCY_KIND, [name]))
    return msgspec.json.decode(found[name].data, type=Record) if name in found else None


async def _store(host: EngineHost, name: str, digest: str, response: Response) -> None:
    """Store the answer `response` in the record under `name`, which then expires after `ANSWER_TTL_MS`.

    `name` is the digest of an idempotency key, `digest` the digest of the request.
    """
    headers = {key: response.headers[key] for key in ("content-type", "location", "etag") if key in response.headers}
    body = base64.b64encode(_without_secret(bytes(response.body))).decode()
    record = Record(digest, response.status_code, headers, body)
    item = KeyValue(kind=IDEMPOTENCY_KIND, id=name, data=_text(record), expires_at=host.now() + ANSWER_TTL_MS)
    await host.call(lambda runtime: runtime.commands.put([item], replace=True))


def _without_secret(body: bytes) -> bytes:
    """Return the body of an answer. A signing secret in it is replaced by a warning that it was shown."""
    if _SECRET_FIELD.encode() not in body:
        return body
    found = msgspec.json.decode(body)
    if not isinstance(found, dict) or found.pop(_SECRET_FIELD, None) is None:
        return body
    return msgspec.json.encode(found | {"warnings": [*found.get("warnings", ()), SHOWN_ONCE]})


def _replay(stored: Record, mine: Record) -> Response:
    """Return the answer in `stored`, the record of the first request. `mine` is the record of the repeated request.

    Raises: Refused, with 422 if the two requests differ, and with 409 if `stored` has no answer yet.
    """
    if stored.request != mine.request:
        fault = Fault(
            "was used for another request", parameter=IDEMPOTENCY_HEADER, suggestion="Use a new key for a new request"
        )
        raise Refused(422, "idempotency-mismatch", f"{IDEMPOTENCY_HEADER}: {fault.detail}", [fault])
    if not stored.status:
        raise _in_flight()
    return Response(base64.b64decode(stored.body), stored.status, {**stored.headers, "Idempotency-Replayed": "true"})


def _in_flight() -> Refused:
    """Return the refusal (409) of a request while the first request with its idempotency key has no stored answer."""
    return Refused(
        409, "idempotency-in-flight", "The first request with this key has no answer yet", headers={"Retry-After": "1"}
    )


def _text(record: Record) -> str:
    return msgspec.json.encode(record).decode()


def _digest(*parts: bytes) -> str:
    """Return one SHA-256 of all parts together, in hexadecimal.

    The length of each part is hashed before the part, so that ("ab", "c") and ("a", "bc") give different digests.
    """
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
