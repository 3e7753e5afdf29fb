"""`Idempotency-Key`: the same request again gets the same answer, on every instance, for a day."""

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
from mainspring.model.kept import IDEMPOTENCY, Kept

if TYPE_CHECKING:
    from mainspring.app import Mainspring

HEADER = "Idempotency-Key"
MAX_LENGTH = 255
_KEY = re.compile(rf"[!-~]{{1,{MAX_LENGTH}}}")
#: So long an answer is kept, and so long one that is being made bars others: then its maker is taken for dead.
KEEP = 24 * 3_600_000
IN_FLIGHT = 60_000


class Record(Struct, omit_defaults=True):
    """What was asked under a key, and the answer once there is one."""

    request: str
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""


async def once(
    ms: Mainspring, request: Request, data: bytes, answer: Callable[[], Awaitable[Response]], who: str = ""
) -> Response:
    """Answer, or give the answer again that this key got before. Refusals are not kept: they changed nothing."""
    given = request.headers.get(HEADER)
    if given is None:
        return await answer()
    key = given.strip()
    if not _KEY.fullmatch(key):
        fault = Fault(f"is not a key of 1 to {MAX_LENGTH} visible ASCII characters", parameter=HEADER)
        raise Refused(422, "invalid", f"{HEADER}: {fault.detail}", [fault])
    print_of = _digest(request.method.encode(), request.url.path.encode(), request.url.query.encode(), data)
    name = _digest(who.encode(), key.encode())
    mine = Record(print_of)
    if not await _claimed(ms, name, mine):
        known = await _known(ms, name)
        if known is not None:
            return _again(known, mine)
        if not await _claimed(ms, name, mine):  # it went between the two questions; the next one may have it
            raise _in_flight()
    try:
        response = await answer()
    except BaseException:
        await ms.call(lambda runtime: runtime.commands.forget(IDEMPOTENCY, [name]))
        raise
    await _store(ms, name, print_of, response)
    return response


async def _claimed(ms: Mainspring, name: str, record: Record) -> bool:
    item = Kept(kind=IDEMPOTENCY, id=name, data=_text(record), expires_at=ms.now() + IN_FLIGHT)
    return (await ms.call(lambda runtime: runtime.commands.keep([item])))[0]


async def _known(ms: Mainspring, name: str) -> Record | None:
    found = await ms.call(lambda runtime: runtime.commands.kept(IDEMPOTENCY, [name]))
    return msgspec.json.decode(found[name].data, type=Record) if name in found else None


async def _store(ms: Mainspring, name: str, print_of: str, response: Response) -> None:
    headers = {key: response.headers[key] for key in ("content-type", "location", "etag") if key in response.headers}
    body = base64.b64encode(bytes(response.body)).decode()
    record = Record(print_of, response.status_code, headers, body)
    item = Kept(kind=IDEMPOTENCY, id=name, data=_text(record), expires_at=ms.now() + KEEP)
    await ms.call(lambda runtime: runtime.commands.keep([item], replace=True))


def _again(known: Record, mine: Record) -> Response:
    if known.request != mine.request:
        fault = Fault("was used for another request", parameter=HEADER, suggestion="Use a new key for a new request")
        raise Refused(422, "idempotency-mismatch", f"{HEADER}: {fault.detail}", [fault])
    if not known.status:
        raise _in_flight()
    return Response(base64.b64decode(known.body), known.status, {**known.headers, "Idempotency-Replayed": "true"})


def _in_flight() -> Refused:
    return Refused(
        409, "idempotency-in-flight", "The first request with this key has no answer yet", headers={"Retry-After": "1"}
    )


def _text(record: Record) -> str:
    return msgspec.json.encode(record).decode()


def _digest(*parts: bytes) -> str:
    """Of parts that are told apart: each one's length goes before it."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
