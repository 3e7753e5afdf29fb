"""API keys of the service: create, list and revoke them, and check the key of a request.

A key is a token, `msk_<id>_<secret>`, with 256 random bits. It is shown once: the store holds a hash of the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import API_KEY_KIND, KeyValue
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import KeyValues, Store

#: How long an instance caches a key: a revocation must take effect in every instance within five seconds.
KEY_CACHE_MS: Ms = 2_000
#: Kind of the key-value entry with the time at which a key was last used. The key itself is in an entry of its own, so
#: that writing its last use cannot restore a revoked key.
KEY_USE_KIND = "key_use"
#: An instance writes the last use of a key at most once in this time.
USE_INTERVAL_MS: Ms = 60_000
#: A token: the id of its key, and the secret.
_TOKEN = re.compile(r"msk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
KeyScope = Literal["read", "write"]
_MAX_CACHED_KEYS = 10_000


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key without its secret."""

    id: str
    name: str
    #: SHA-256 of the secret, as hexadecimal digits.
    digest: str
    #: The namespace whose services accept the key.
    ns: str = "default"
    #: "read": the key may only read. "write", and "all" in keys that earlier versions stored: it may do everything.
    scope: str = "write"
    #: Set by the store: 0 in a key that was not read from it.
    created_at: Ms = 0
    #: None: the key never expires.
    expires_at: Ms | None = None
    #: When the key was last used; None if it never was, and in every key that `list_keys` did not return.
    last_used: Ms | None = None

    @property
    def may_write(self) -> bool:
        """True if the key may change something; False also for a scope that this version does not know."""
        return self.scope in ("write", "all")


class _Data(Struct):
    """What the key-value entry of an API key holds as JSON. Id and expiry of the key are columns of the entry."""

    name: str
    digest: str
    scope: str = "all"
    #: Keys that earlier versions stored belong to this namespace.
    ns: str = "default"


def _digest(secret: str) -> str:
    # A fast hash is safe, because the secret is 256 random bits; a slow one would cost every request.
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_key(
    store: Store, name: str, expires_at: Ms | None = None, *, ns: str = "default", scope: KeyScope = "write"
) -> tuple[ApiKey, str]:
    """Make and store a new API key. Return the key, and its token, which is not stored and cannot be read again.

    `expires_at` None: the key never expires. `ns`: the namespace whose services accept it. `scope` "read": it may
    only read. Raises: InvalidInput for a name that is not valid, or is taken in the namespace.
    """
    check_name(name, field="name")
    taken = {key.name for key in await list_keys(store, ns)}
    if name in taken:
        raise InvalidInput("name", f"there is a key called {name!r} already", "Give another name, or revoke that one")
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    key = ApiKey(id=key_id, name=name, digest=_digest(secret), ns=ns, scope=scope, expires_at=expires_at)
    data = msgspec.json.encode(_Data(name=name, digest=key.digest, scope=scope, ns=ns)).decode()
    await store.put([KeyValue(kind=API_KEY_KIND, id=key_id, data=data, expires_at=expires_at)])
    return key, f"msk_{key_id}_{secret}"


async def list_keys(store: Store, ns: str = "default") -> list[ApiKey]:
    """Return a namespace's keys that have neither expired nor been revoked, with their last use, oldest key first."""
    rows = iterate_rows(store, KeyValues(kind=API_KEY_KIND, limit=500), lambda row: row.id)
    keys = [key async for row in rows if (key := _decode_key(row)).ns == ns]
    used = {row.id: row.created_at for row in await store.find(KeyValues(kind=KEY_USE_KIND, limit=10_000))}
    return sorted(
        (msgspec.structs.replace(key, last_used=used.get(key.id)) for key in keys),
        key=lambda key: (key.created_at, key.id),
    )


async def revoke_key(store: Store, name_or_id: str, ns: str = "default") -> ApiKey:
    """Delete the key of a namespace with this id or name, and return the key. Raises: InvalidInput if there is none."""
    from mainspring.model.errors import suggest_nearest

    keys = await list_keys(store, ns)
    for key in keys:
        if name_or_id in (key.id, key.name):
            await store.remove(API_KEY_KIND, [key.id])
            await store.remove(KEY_USE_KIND, [key.id])
            return key
    known = [name for key in keys for name in (key.name, key.id)]
    raise InvalidInput(
        "key", f"there is no key {name_or_id!r}", suggest_nearest(name_or_id, known) or "See `mainspring key list`"
    )


def _decode_key(row: KeyValue) -> ApiKey:
    """Return the API key that a key-value entry holds. `last_used` is None: that time is in an entry of its own."""
    data = msgspec.json.decode(row.data, type=_Data)
    return ApiKey(
        id=row.id,
        name=data.name,
        digest=data.digest,
        ns=data.ns,
        scope=data.scope,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


class KeyRing:
    """Checks the tokens of requests against the stored keys of namespace `ns`. It caches each key for `KEY_CACHE_MS`.

    `ask(question)` awaits `question(store)` on the engine's loop, where the store may be used, and returns the answer.
    `now` returns the present time.
    """

    def __init__(
        self, ns: str, ask: Callable[[Callable[[Store], Awaitable[Any]]], Awaitable[Any]], now: Callable[[], Ms]
    ) -> None:
        self._ns = ns
        self._ask = ask
        self._now = now
        #: Key id → when the store was read, and the key; None if there was none.
        self._seen: dict[str, tuple[Ms, ApiKey | None]] = {}
        #: Key id → when its last use was written.
        self._used: dict[str, Ms] = {}

    async def check_token(self, token: str) -> ApiKey | None:
        """Return the API key of a valid token; None if the token is invalid.

        It is invalid if it is malformed, if its secret is wrong, or if its key is unknown, revoked, expired or of
        another namespace. The time of the use is stored, at most once in `USE_INTERVAL_MS`. Raises: StoreError if the
        store cannot be reached.
        """
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        key = await self._known(parts[1])
        # Compared in constant time, also if there is no such key.
        right = hmac.compare_digest(_digest(parts[2]), "" if key is None else key.digest)
        now = self._now()
        if not right or key is None or (key.expires_at is not None and key.expires_at <= now):
            return None
        await self._note_use(key, now)
        return key

    def must_look_up(self, token: str) -> bool:
        """Return True if `check_token` must ask the store for a key of which it does not know that it exists."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return False
        at, key = self._seen.get(parts[1], (-KEY_CACHE_MS, None))
        return key is None and not 0 <= self._now() - at < KEY_CACHE_MS

    async def has_keys(self) -> bool:
        """Return True if the store holds a key of the namespace that has not expired."""
        return bool(await self._ask(lambda store: list_keys(store, self._ns)))

    async def _known(self, key_id: str) -> ApiKey | None:
        """Return the namespace's key with this id, as it was at most `KEY_CACHE_MS` ago; None if there was none."""
        now = self._now()
        at, key = self._seen.get(key_id, (-KEY_CACHE_MS, None))
        if not 0 <= now - at < KEY_CACHE_MS:
            rows = await self._ask(lambda store: store.find(KeyValues(kind=API_KEY_KIND, ids=(key_id,), limit=1)))
            key = _decode_key(rows[0]) if rows else None
            if key is not None and key.ns != self._ns:
                key = None
            if len(self._seen) >= _MAX_CACHED_KEYS:
                self._seen.clear()
            self._seen[key_id] = (now, key)
        return key

    async def _note_use(self, key: ApiKey, now: Ms) -> None:
        """Store `now` as the last use of a key, unless this instance stored a use of it within `USE_INTERVAL_MS`."""
        if now - self._used.get(key.id, -USE_INTERVAL_MS) >= USE_INTERVAL_MS:
            self._used[key.id] = now
            use = KeyValue(kind=KEY_USE_KIND, id=key.id, data="{}", created_at=now)
            await self._ask(lambda store: store.put([use], replace=True))


__all__ = ["KEY_CACHE_MS", "ApiKey", "KeyRing", "create_key", "list_keys", "revoke_key"]
