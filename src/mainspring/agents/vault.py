"""Header values and signing secrets: kept beside the log, read when a call is made. Lives on the engine's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms
from mainspring.model.kept import HEADER, SIGNING, Kept
from mainspring.ports.store import KeptOnes, Store

#: A rotated secret signs beside the new one for so long.
OVERLAP: Ms = 86_400_000
#: Values that nothing refers to any more stay so long, for runs that still wait.
RETIRED: Ms = 30 * 86_400_000
#: A secret read from the store is good for so long, in ms; then a rotation elsewhere is seen.
FRESH: Ms = 5_000
MAX_REMEMBERED = 10_000
#: The key from which references are made, so that they tell nothing of the values.
REFERENCES = "references"


class Secret(Struct, frozen=True, omit_defaults=True):
    """One signing secret; a rotated one ends."""

    secret: str
    until: Ms | None = None

    def __repr__(self) -> str:
        return "Secret(…)"


class Signing(Struct, frozen=True, omit_defaults=True):
    """A schedule's secrets, the newest first; `shown` once somebody has seen it."""

    secrets: tuple[Secret, ...] = ()
    shown: bool = False


class Known(Struct, frozen=True):
    """What a call needs beside the run."""

    headers: Mapping[str, str] | None
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return "Known(…)"


class Vault:
    """The one place that reads and writes them."""

    def __init__(self, store: Store, now: Callable[[], Ms]) -> None:
        self._store = store
        self._now = now
        self._key: bytes | None = None
        self._headers: dict[str, dict[str, str]] = {}
        self._signing: dict[str, tuple[Ms, Signing]] = {}

    # ── header values ──────────────────────────────────────────────────────

    async def put_away(self, owner: str, headers: Mapping[str, str]) -> str | None:
        """Keep the header values of a schedule; the reference is the same for the same values."""
        if not headers:
            return None
        from mainspring.agents.signing import reference  # most programs keep nothing

        data = msgspec.json.encode(dict(sorted(headers.items())))
        ref = reference(await self._reference_key(), owner.encode() + b"\0" + data)
        found = await self._store.find(KeptOnes(kind=HEADER, ids=(ref,)))
        if not found or found[0].expires_at is not None:
            await self._store.keep([Kept(kind=HEADER, id=ref, data=data.decode())], replace=True)
        return ref

    async def headers(self, ref: str | None) -> dict[str, str] | None:
        """The values a reference names; None when they are gone."""
        if ref is None:
            return {}
        known = self._headers.get(ref)
        if known is None:
            found = await self._store.find(KeptOnes(kind=HEADER, ids=(ref,)))
            if not found:
                return None
            known = self._headers[ref] = msgspec.json.decode(found[0].data, type=dict[str, str])
            if len(self._headers) > MAX_REMEMBERED:
                del self._headers[next(iter(self._headers))]
        return known

    def at_hand(self, ref: str | None, schedule_id: str) -> Known | None:
        """The same as `known`, if nothing has to be read for it; from any thread."""
        headers = {} if ref is None else self._headers.get(ref)
        read_at, signing = self._signing.get(schedule_id, (0, None))
        now = self._now()
        if headers is None or signing is None or not now - FRESH <= read_at <= now:
            return None
        return Known(headers, _in_force(signing, now))

    async def known(self, ref: str | None, schedule_id: str) -> Known:
        """What a call needs."""
        return Known(await self.headers(ref), await self.secrets(schedule_id))

    async def retire(self, *, ref: str | None = None, schedule_id: str | None = None) -> None:
        """Nothing new refers to these: they end when whatever still waits for them must be over."""
        for kind, name in ((HEADER, ref), (SIGNING, schedule_id)):
            found = [] if name is None else await self._store.find(KeptOnes(kind=kind, ids=(name,)))
            if found:
                ends = Kept(kind=kind, id=found[0].id, data=found[0].data, expires_at=self._now() + RETIRED)
                await self._store.keep([ends], replace=True)

    async def _reference_key(self) -> bytes:
        if self._key is None:
            made = Kept(kind=SIGNING, id=REFERENCES, data=_new_secret())
            await self._store.keep([made])
            self._key = (await self._store.find(KeptOnes(kind=SIGNING, ids=(REFERENCES,))))[0].data.encode()
        return self._key

    # ── signing secrets ────────────────────────────────────────────────────

    async def secrets(self, schedule_id: str) -> tuple[str, ...]:
        """The secrets that sign now, the newest first; a schedule without one gets one."""
        now = self._now()
        read_at, signing = self._signing.get(schedule_id, (0, None))
        if signing is None or not now - FRESH <= read_at <= now:
            signing = await self._read(schedule_id)
            self._remember(schedule_id, signing)
        return _in_force(signing, now)

    async def show(self, schedule_id: str) -> str:
        """The secret, the one time it is shown."""
        signing = await self._read(schedule_id)
        if signing.shown:
            raise InvalidInput(
                "secret", "it was shown before, and is shown only once", "Rotate it: the answer is the new one"
            )
        await self._write(schedule_id, Signing(signing.secrets, shown=True))
        return signing.secrets[0].secret

    async def rotate(self, schedule_id: str, overlap: Ms = OVERLAP) -> str:
        """A new secret; for a while calls carry a signature by the old one, too."""
        until = self._now() + overlap
        old = (await self._read(schedule_id)).secrets
        kept = tuple(Secret(one.secret, until if one.until is None else one.until) for one in old[:1])
        fresh = _new_secret()
        await self._write(schedule_id, Signing((Secret(fresh), *kept), shown=True))
        return fresh

    async def _read(self, schedule_id: str) -> Signing:
        for _ in range(3):
            found = await self._store.find(KeptOnes(kind=SIGNING, ids=(schedule_id,)))
            if found:
                return msgspec.json.decode(found[0].data, type=Signing)
            made = Signing((Secret(_new_secret()),))
            await self._store.keep([Kept(kind=SIGNING, id=schedule_id, data=msgspec.json.encode(made).decode())])
        raise InvalidInput("secret", "the store does not keep signing secrets", "Look at the store")

    async def _write(self, schedule_id: str, signing: Signing) -> None:
        data = msgspec.json.encode(signing).decode()
        await self._store.keep([Kept(kind=SIGNING, id=schedule_id, data=data)], replace=True)
        self._remember(schedule_id, signing)

    def _remember(self, schedule_id: str, signing: Signing) -> None:
        self._signing.pop(schedule_id, None)
        self._signing[schedule_id] = (self._now(), signing)
        if len(self._signing) > MAX_REMEMBERED:
            del self._signing[next(iter(self._signing))]


def _new_secret() -> str:
    from mainspring.agents.signing import new_secret

    return new_secret()


def _in_force(signing: Signing, now: Ms) -> tuple[str, ...]:
    return tuple(one.secret for one in signing.secrets if one.until is None or one.until > now)
