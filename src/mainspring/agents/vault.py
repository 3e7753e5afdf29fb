"""Vault: header values, queries and signing secrets of HTTP agents, as key-value entries. Thread: engine loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from mainspring.model.errors import InvalidInput, StoreError
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import HEADERS_KIND, SIGNING_KIND, KeyValue
from mainspring.ports.store import KeyValues, Store

#: After a rotation, calls are signed with the old secret, too, for this long unless the caller says otherwise.
ROTATION_OVERLAP_MS: Ms = 86_400_000
#: Header values and secrets that no schedule uses any more stay stored for this long, for runs that still wait.
RETIRED_TTL_MS: Ms = 30 * 86_400_000
#: Signing secrets are cached for this long. Then they are read again, because another instance may have rotated them.
SECRET_CACHE_MS: Ms = 5_000
#: The most entries of each of the two caches, for header values and for signing secrets.
MAX_CACHED_ENTRIES = 10_000
#: Id of the key-value entry that holds the key for `make_reference`. Without this key, a reference reveals nothing of
#: the header values that it stands for.
REFERENCE_KEY_ID = "references"


#: The name of the query in an entry of header values. No header can have this name.
_QUERY = "?"
#: Id of the key-value entry with the key of callback tokens. No user sees it, so that only a service makes tokens.
CALLBACK_KEY_ID = "callbacks"
#: Earlier versions made tokens with the signing secret. They are accepted for attempts that began until this long after
#: the store got its callback key: instances of an earlier version may run beside those of this one.
OLD_TOKENS_MS: Ms = 3_600_000


class Secret(Struct, frozen=True, omit_defaults=True):
    """One signing secret. `until`: when it stops signing, because it was rotated; None: it is the newest."""

    secret: str
    until: Ms | None = None

    def __repr__(self) -> str:
        return "Secret(…)"


class Signing(Struct, frozen=True, omit_defaults=True):
    """Signing secrets of a schedule, newest first. `shown` is True once a user has received the newest."""

    secrets: tuple[Secret, ...] = ()
    shown: bool = False


class StoredCall(Struct, frozen=True):
    """What is stored apart from a schedule's definition: the header values of its calls, and the query of their URL.

    `query` is without its question mark; "": the URL has none, or its query has no values.
    """

    headers: Mapping[str, str] = {}
    query: str = ""

    def __repr__(self) -> str:
        return "StoredCall(…)"


class CallSecrets(Struct, frozen=True):
    """Header values of a call (None if they are stored no longer), and the secrets that sign it, newest first.

    `callback_key` makes the token for its callbacks; "": the agent cannot call back. `query` is that of the URL; "": it
    is not stored apart from the URL.
    """

    headers: Mapping[str, str] | None
    secrets: tuple[str, ...]
    callback_key: str = ""
    query: str = ""

    def __repr__(self) -> str:
        return "CallSecrets(…)"


class Vault:
    """Reads and writes header values, queries and signing secrets. Apart from the vault, only `mainspring copy` does.

    `now` returns the present time.
    """

    def __init__(self, store: Store, now: Callable[[], Ms]) -> None:
        self._store = store
        self._now = now
        self._key: bytes | None = None
        #: Key of callback tokens, and when the store got it.
        self._callback_key: tuple[str, Ms] | None = None
        #: Reference → header values and query.
        self._calls: dict[str, StoredCall] = {}
        #: Schedule id → when the store was read, and the secrets.
        self._signing: dict[str, tuple[Ms, Signing]] = {}

    # ── header values and queries ──────────────────────────────────────────

    async def store_call(self, owner: str, call: StoredCall) -> str | None:
        """Store header values and query of a schedule and return a reference to them; None if there are none.

        `owner` is the schedule's name with its namespace. Equal values of one owner have one reference.
        """
        values = {**call.headers, _QUERY: call.query} if call.query else dict(call.headers)
        if not values:
            return None
        from mainspring.agents.signing import make_reference  # most programs store no headers

        data = msgspec.json.encode(dict(sorted(values.items())))
        ref = make_reference(await self._reference_key(), owner.encode() + b"\0" + data)
        found = await self._store.find(KeyValues(kind=HEADERS_KIND, ids=(ref,)))
        if not found or found[0].expires_at is not None:
            await self._store.put([KeyValue(kind=HEADERS_KIND, id=ref, data=data.decode())], replace=True)
        return ref

    async def headers(self, ref: str | None) -> Mapping[str, str] | None:
        """Return the header values that `ref` refers to; None if they are stored no longer. `ref` None: no headers."""
        found = await self.find_call(ref)
        return None if found is None else found.headers

    async def find_call(self, ref: str | None) -> StoredCall | None:
        """Return header values and query that `ref` refers to; None if they are stored no longer. `ref` None: none."""
        if ref is None:
            return StoredCall()
        known = self._calls.get(ref)
        if known is None:
            found = await self._store.find(KeyValues(kind=HEADERS_KIND, ids=(ref,)))
            if not found:
                return None
            values = msgspec.json.decode(found[0].data, type=dict[str, str])
            query = values.pop(_QUERY, "")
            known = self._calls[ref] = StoredCall(values, query)
            if len(self._calls) > MAX_CACHED_ENTRIES:
                del self._calls[next(iter(self._calls))]
        return known

    def cached(self, ref: str | None, schedule_id: str) -> CallSecrets | None:
        """Return the secrets of a call from the cache; None if the store must be read.

        `ref` is the reference that `store_call` returned; None: the schedule has no such values. Signing secrets that
        were cached more than `SECRET_CACHE_MS` ago must be read again. Thread: any.
        """
        call = StoredCall() if ref is None else self._calls.get(ref)
        read_at, signing = self._signing.get(schedule_id, (0, None))
        now = self._now()
        if call is None or signing is None or self._callback_key is None or not now - SECRET_CACHE_MS <= read_at <= now:
            return None
        return CallSecrets(call.headers, _in_force(signing, now), self._callback_key[0], call.query)

    async def load(self, ref: str | None, schedule_id: str) -> CallSecrets:
        """Return the secrets of a call, from the store unless they are cached.

        `ref` is the reference that `store_call` returned; None: the schedule has no such values. If the schedule has no
        secret, one is made and stored.
        """
        key, _ = await self.callback_key()
        call = await self.find_call(ref)
        headers, query = (None, "") if call is None else (call.headers, call.query)
        return CallSecrets(headers, await self.secrets(schedule_id), key, query)

    async def retire(self, *, ref: str | None = None, schedule_id: str | None = None) -> None:
        """Have the values of `ref` and the signing secrets of `schedule_id` expire after `RETIRED_TTL_MS`.

        Called when no schedule uses them any more; runs that wait may still need them. An argument None is ignored.
        """
        for kind, name in ((HEADERS_KIND, ref), (SIGNING_KIND, schedule_id)):
            found = [] if name is None else await self._store.find(KeyValues(kind=kind, ids=(name,)))
            if found:
                ends = KeyValue(kind=kind, id=found[0].id, data=found[0].data, expires_at=self._now() + RETIRED_TTL_MS)
                await self._store.put([ends], replace=True)

    async def _reference_key(self) -> bytes:
        """Return the HMAC key with which `make_reference` makes references. The first call on a store makes the key."""
        if self._key is None:
            made = KeyValue(kind=SIGNING_KIND, id=REFERENCE_KEY_ID, data=_new_secret())
            await self._store.put([made])
            self._key = (await self._store.find(KeyValues(kind=SIGNING_KIND, ids=(REFERENCE_KEY_ID,))))[0].data.encode()
        return self._key

    async def callback_key(self) -> tuple[str, Ms]:
        """Return the key of callback tokens, and when the store got it. The first call on a store makes the key."""
        if self._callback_key is None:
            made = KeyValue(kind=SIGNING_KIND, id=CALLBACK_KEY_ID, data=_new_secret())
            await self._store.put([made])
            (found,) = await self._store.find(KeyValues(kind=SIGNING_KIND, ids=(CALLBACK_KEY_ID,)))
            self._callback_key = found.data, found.created_at
        return self._callback_key

    async def token_keys(self, schedule_id: str, began_at: Ms | None) -> tuple[str, ...]:
        """Return the keys that may have made the callback token of an attempt of a schedule which began at `began_at`.

        These are the callback key, and for attempts that an earlier version began, the signing secrets.
        """
        key, since = await self.callback_key()
        if began_at is None or began_at >= since + OLD_TOKENS_MS:
            return (key,)
        return (key, *await self.secrets(schedule_id))

    # ── signing secrets ────────────────────────────────────────────────────

    async def secrets(self, schedule_id: str) -> tuple[str, ...]:
        """Return the secrets with which calls of a schedule are signed now, newest first.

        If the schedule has no secret, one is made and stored. Raises: StoreError.
        """
        now = self._now()
        read_at, signing = self._signing.get(schedule_id, (0, None))
        if signing is None or not now - SECRET_CACHE_MS <= read_at <= now:
            signing = await self._read(schedule_id)
            self._remember(schedule_id, signing)
        return _in_force(signing, now)

    async def show(self, schedule_id: str) -> str:
        """Return the newest secret of a schedule, for the user, and store that it was shown.

        Raises: InvalidInput if it was shown before.
        """
        signing = await self._read(schedule_id)
        if signing.shown:
            raise InvalidInput(
                "secret",
                "the signing secret can be read only once, and was read already",
                "Rotate it to get a new one",
            )
        await self._write(schedule_id, Signing(signing.secrets, shown=True))
        return signing.secrets[0].secret

    async def rotate(self, schedule_id: str, overlap: Ms = ROTATION_OVERLAP_MS) -> str:
        """Make, store and return a new secret of a schedule. For `overlap` ms, its former secret signs calls, too.

        0: the former secrets end at once; other instances may sign with them for `SECRET_CACHE_MS`.
        The new secret counts as shown, because the caller returns it to the user.
        """
        until = self._now() + overlap
        old = (await self._read(schedule_id)).secrets
        kept = tuple(Secret(one.secret, until if one.until is None else one.until) for one in old[:1] if overlap)
        fresh = _new_secret()
        await self._write(schedule_id, Signing((Secret(fresh), *kept), shown=True))
        return fresh

    async def _read(self, schedule_id: str) -> Signing:
        """Return the secrets of a schedule from the store; if there are none, make and store the first.

        Raises: StoreError if a secret that was stored cannot be read back.
        """
        for _ in range(3):
            found = await self._store.find(KeyValues(kind=SIGNING_KIND, ids=(schedule_id,)))
            if found:
                return msgspec.json.decode(found[0].data, type=Signing)
            made = Signing((Secret(_new_secret()),))
            await self._store.put(
                [KeyValue(kind=SIGNING_KIND, id=schedule_id, data=msgspec.json.encode(made).decode())]
            )
        raise StoreError("the signing secret was written three times and cannot be read back")

    async def _write(self, schedule_id: str, signing: Signing) -> None:
        """Store the secrets of a schedule, and put them into the cache."""
        data = msgspec.json.encode(signing).decode()
        await self._store.put([KeyValue(kind=SIGNING_KIND, id=schedule_id, data=data)], replace=True)
        self._remember(schedule_id, signing)

    def _remember(self, schedule_id: str, signing: Signing) -> None:
        """Put the secrets of a schedule into the cache. They were read from or written to the store just now."""
        self._signing.pop(schedule_id, None)
        self._signing[schedule_id] = (self._now(), signing)
        if len(self._signing) > MAX_CACHED_ENTRIES:
            del self._signing[next(iter(self._signing))]


def _new_secret() -> str:
    from mainspring.agents.signing import new_secret

    return new_secret()


def _in_force(signing: Signing, now: Ms) -> tuple[str, ...]:
    """Return the secrets that sign at `now`, newest first: the newest, and those whose `until` is still to come."""
    return tuple(one.secret for one in signing.secrets if one.until is None or one.until > now)
