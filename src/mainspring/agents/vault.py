"""Vault: header values and signing secrets of HTTP agents, stored as key-value entries. Thread: engine loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import HEADERS_KIND, SIGNING_KIND, KeyValue
from mainspring.ports.store import KeyValues, Store

#: After a rotation, the old secret signs beside the new one for this long.
ROTATION_OVERLAP_MS: Ms = 86_400_000
#: Values that no schedule refers to any more are stored for this long, for runs that still wait.
RETIRED_TTL_MS: Ms = 30 * 86_400_000
#: Secrets are cached for this long, so that a rotation by another instance takes effect afterwards.
SECRET_CACHE_MS: Ms = 5_000
#: Upper bound of each cache: that of header values and that of signing secrets.
MAX_CACHED_ENTRIES = 10_000
#: Id of the entry with the key of `make_reference`: without that key, a reference reveals nothing of the values.
REFERENCES = "references"


class Secret(Struct, frozen=True, omit_defaults=True):
    """One signing secret. `until`: the instant at which it stops signing; None if it was not rotated."""

    secret: str
    until: Ms | None = None

    def __repr__(self) -> str:
        return "Secret(…)"


class Signing(Struct, frozen=True, omit_defaults=True):
    """Signing secrets of a schedule, newest first; `shown` is True once the newest was shown."""

    secrets: tuple[Secret, ...] = ()
    shown: bool = False


class CallSecrets(Struct, frozen=True):
    """Header values of a call, None if the stored values are gone, and the secrets that sign it, newest first."""

    headers: Mapping[str, str] | None
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return "CallSecrets(…)"


class Vault:
    """Reads and writes header values and signing secrets; no other module does. `now` returns the present time."""

    def __init__(self, store: Store, now: Callable[[], Ms]) -> None:
        self._store = store
        self._now = now
        self._key: bytes | None = None
        #: Reference → header values.
        self._headers: dict[str, dict[str, str]] = {}
        #: Schedule id → when the store was read, and the secrets.
        self._signing: dict[str, tuple[Ms, Signing]] = {}

    # ── header values ──────────────────────────────────────────────────────

    async def store_headers(self, owner: str, headers: Mapping[str, str]) -> str | None:
        """Store the header values of a schedule and return their reference; None if there are no headers.

        `owner` is the schedule's name with its namespace: equal values of one owner have one reference.
        """
        if not headers:
            return None
        from mainspring.agents.signing import make_reference  # most programs store no headers

        data = msgspec.json.encode(dict(sorted(headers.items())))
        ref = make_reference(await self._reference_key(), owner.encode() + b"\0" + data)
        found = await self._store.find(KeyValues(kind=HEADERS_KIND, ids=(ref,)))
        if not found or found[0].expires_at is not None:
            await self._store.put([KeyValue(kind=HEADERS_KIND, id=ref, data=data.decode())], replace=True)
        return ref

    async def headers(self, ref: str | None) -> dict[str, str] | None:
        """Return the header values of a reference: {} for None, and None if the store has them no longer."""
        if ref is None:
            return {}
        known = self._headers.get(ref)
        if known is None:
            found = await self._store.find(KeyValues(kind=HEADERS_KIND, ids=(ref,)))
            if not found:
                return None
            known = self._headers[ref] = msgspec.json.decode(found[0].data, type=dict[str, str])
            if len(self._headers) > MAX_CACHED_ENTRIES:
                del self._headers[next(iter(self._headers))]
        return known

    def cached(self, ref: str | None, schedule_id: str) -> CallSecrets | None:
        """Return what `load` would return, from the cache; None if the store must be read. Thread: any."""
        headers = {} if ref is None else self._headers.get(ref)
        read_at, signing = self._signing.get(schedule_id, (0, None))
        now = self._now()
        if headers is None or signing is None or not now - SECRET_CACHE_MS <= read_at <= now:
            return None
        return CallSecrets(headers, _in_force(signing, now))

    async def load(self, ref: str | None, schedule_id: str) -> CallSecrets:
        """Return the header values and signing secrets of a call, from the store unless they are cached.

        `ref` is the reference from `store_headers`; None: the call has no such headers. A schedule without a secret
        gets one.
        """
        return CallSecrets(await self.headers(ref), await self.secrets(schedule_id))

    async def retire(self, *, ref: str | None = None, schedule_id: str | None = None) -> None:
        """Let the header values `ref` and the signing secrets of `schedule_id` expire after `RETIRED_TTL_MS`.

        No schedule uses them any more, but runs that wait now may still need them. An argument None is ignored.
        """
        for kind, name in ((HEADERS_KIND, ref), (SIGNING_KIND, schedule_id)):
            found = [] if name is None else await self._store.find(KeyValues(kind=kind, ids=(name,)))
            if found:
                ends = KeyValue(kind=kind, id=found[0].id, data=found[0].data, expires_at=self._now() + RETIRED_TTL_MS)
                await self._store.put([ends], replace=True)

    async def _reference_key(self) -> bytes:
        """Return the key of this store's references; the first call on a store makes and stores it."""
        if self._key is None:
            made = KeyValue(kind=SIGNING_KIND, id=REFERENCES, data=_new_secret())
            await self._store.put([made])
            self._key = (await self._store.find(KeyValues(kind=SIGNING_KIND, ids=(REFERENCES,))))[0].data.encode()
        return self._key

    # ── signing secrets ────────────────────────────────────────────────────

    async def secrets(self, schedule_id: str) -> tuple[str, ...]:
        """Return the secrets that sign now, newest first; a schedule without a secret gets one, which is stored."""
        now = self._now()
        read_at, signing = self._signing.get(schedule_id, (0, None))
        if signing is None or not now - SECRET_CACHE_MS <= read_at <= now:
            signing = await self._read(schedule_id)
            self._remember(schedule_id, signing)
        return _in_force(signing, now)

    async def show(self, schedule_id: str) -> str:
        """Return the newest secret and store that it was shown. Raises: InvalidInput if it was shown before."""
        signing = await self._read(schedule_id)
        if signing.shown:
            raise InvalidInput(
                "secret", "it was shown before, and is shown only once", "Rotate it: the answer is the new one"
            )
        await self._write(schedule_id, Signing(signing.secrets, shown=True))
        return signing.secrets[0].secret

    async def rotate(self, schedule_id: str, overlap: Ms = ROTATION_OVERLAP_MS) -> str:
        """Store and return a new secret, which counts as shown; for `overlap` ms the one before it signs, too."""
        until = self._now() + overlap
        old = (await self._read(schedule_id)).secrets
        kept = tuple(Secret(one.secret, until if one.until is None else one.until) for one in old[:1])
        fresh = _new_secret()
        await self._write(schedule_id, Signing((Secret(fresh), *kept), shown=True))
        return fresh

    async def _read(self, schedule_id: str) -> Signing:
        """Return the stored secrets of a schedule; if there are none, store a first one."""
        for _ in range(3):
            found = await self._store.find(KeyValues(kind=SIGNING_KIND, ids=(schedule_id,)))
            if found:
                return msgspec.json.decode(found[0].data, type=Signing)
            made = Signing((Secret(_new_secret()),))
            await self._store.put(
                [KeyValue(kind=SIGNING_KIND, id=schedule_id, data=msgspec.json.encode(made).decode())]
            )
        raise InvalidInput("secret", "the store does not keep signing secrets", "Look at the store")

    async def _write(self, schedule_id: str, signing: Signing) -> None:
        data = msgspec.json.encode(signing).decode()
        await self._store.put([KeyValue(kind=SIGNING_KIND, id=schedule_id, data=data)], replace=True)
        self._remember(schedule_id, signing)

    def _remember(self, schedule_id: str, signing: Signing) -> None:
        """Put the secrets of a schedule into the cache, as read or written now."""
        self._signing.pop(schedule_id, None)
        self._signing[schedule_id] = (self._now(), signing)
        if len(self._signing) > MAX_CACHED_ENTRIES:
            del self._signing[next(iter(self._signing))]


def _new_secret() -> str:
    from mainspring.agents.signing import new_secret

    return new_secret()


def _in_force(signing: Signing, now: Ms) -> tuple[str, ...]:
    """Return the secrets that sign at `now`, newest first."""
    return tuple(one.secret for one in signing.secrets if one.until is None or one.until > now)
