"""API keys: 256 random bits, shown once, kept as a hash; whoever asks sees a revocation within seconds."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.model.instant import Ms
from mainspring.model.kept import KEY, Kept
from mainspring.paging import all_rows
from mainspring.ports.store import KeptOnes, Store

#: A key that was seen is asked for again after this; revocation must reach every instance within five seconds.
FRESH: Ms = 2_000
#: When a key was last used, apart from the key: what is written here can never bring a revoked one back.
USE = "key_use"
USE_EVERY: Ms = 60_000
_TOKEN = re.compile(r"msk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_REMEMBERED = 10_000


class ApiKey(Struct, frozen=True, kw_only=True):
    """What is known of a key; never the key itself."""

    id: str
    name: str
    digest: str
    #: Room for roles: today every key may do everything.
    scope: str = "all"
    created_at: Ms = 0
    expires_at: Ms | None = None
    last_used: Ms | None = None


class _Data(Struct):
    name: str
    digest: str
    scope: str = "all"


def _digest(secret: str) -> str:
    # The secret is 256 random bits, so a plain hash is as good as a slow one, and every request can afford it.
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_key(store: Store, name: str, expires_at: Ms | None = None) -> tuple[ApiKey, str]:
    """A new key and its token, which nobody can show again."""
    check_name(name, field="name")
    taken = {key.name for key in await list_keys(store)}
    if name in taken:
        raise InvalidInput("name", f"there is a key called {name!r} already", "Give another name, or revoke that one")
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    key = ApiKey(id=key_id, name=name, digest=_digest(secret), expires_at=expires_at)
    data = msgspec.json.encode(_Data(name=name, digest=key.digest)).decode()
    await store.keep([Kept(kind=KEY, id=key_id, data=data, expires_at=expires_at)])
    return key, f"msk_{key_id}_{secret}"


async def list_keys(store: Store) -> list[ApiKey]:
    """Every key that has not expired, the oldest first."""
    keys = [_key(row) async for row in all_rows(store, KeptOnes(kind=KEY, limit=500), lambda row: row.id)]
    used = {row.id: row.created_at for row in await store.find(KeptOnes(kind=USE, limit=10_000))}
    return sorted(
        (msgspec.structs.replace(key, last_used=used.get(key.id)) for key in keys),
        key=lambda key: (key.created_at, key.id),
    )


async def revoke_key(store: Store, given: str) -> ApiKey:
    """End a key, by id or name."""
    from mainspring.model.errors import nearest

    keys = await list_keys(store)
    for key in keys:
        if given in (key.id, key.name):
            await store.forget(KEY, [key.id])
            await store.forget(USE, [key.id])
            return key
    known = [name for key in keys for name in (key.name, key.id)]
    raise InvalidInput("key", f"there is no key {given!r}", nearest(given, known) or "See `mainspring key list`")


def _key(row: Kept) -> ApiKey:
    data = msgspec.json.decode(row.data, type=_Data)
    return ApiKey(
        id=row.id,
        name=data.name,
        digest=data.digest,
        scope=data.scope,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


class KeyRing:
    """Judges tokens; what the store said is believed for two seconds."""

    def __init__(
        self, ask: Callable[[Callable[[Store], Awaitable[Any]]], Awaitable[Any]], now: Callable[[], Ms]
    ) -> None:
        self._ask = ask
        self._now = now
        self._seen: dict[str, tuple[Ms, ApiKey | None]] = {}
        self._used: dict[str, Ms] = {}

    async def judge(self, token: str) -> ApiKey | None:
        """The key of a token, or None when there is none such (any more)."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        key = await self._known(parts[1])
        # Compared in constant time, also where there is no such key.
        right = hmac.compare_digest(_digest(parts[2]), "" if key is None else key.digest)
        now = self._now()
        if not right or key is None or (key.expires_at is not None and key.expires_at <= now):
            return None
        await self._note_use(key, now)
        return key

    async def any(self) -> bool:
        """True when there is a key at all."""
        return bool(await self._ask(lambda store: store.find(KeptOnes(kind=KEY, limit=1))))

    async def _known(self, key_id: str) -> ApiKey | None:
        now = self._now()
        at, key = self._seen.get(key_id, (-FRESH, None))
        if not 0 <= now - at < FRESH:
            rows = await self._ask(lambda store: store.find(KeptOnes(kind=KEY, ids=(key_id,), limit=1)))
            key = _key(rows[0]) if rows else None
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[key_id] = (now, key)
        return key

    async def _note_use(self, key: ApiKey, now: Ms) -> None:
        if now - self._used.get(key.id, -USE_EVERY) >= USE_EVERY:
            self._used[key.id] = now
            use = Kept(kind=USE, id=key.id, data="{}", created_at=now)
            await self._ask(lambda store: store.keep([use], replace=True))


__all__ = ["FRESH", "ApiKey", "KeyRing", "create_key", "list_keys", "revoke_key"]
