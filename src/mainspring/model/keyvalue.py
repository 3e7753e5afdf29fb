"""Key-value entries: data beside the log that no event carries, such as secrets, hashed keys and stored answers."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms

#: Kind of the header values of one schedule revision, as a JSON object.
HEADERS_KIND = "header"
#: Kind of a schedule's secret, with which its HTTP calls are signed.
SIGNING_KIND = "signing"
#: Kind of an API key, hashed.
API_KEY_KIND = "key"
#: Kind of the stored answer to an HTTP request that may be sent again.
IDEMPOTENCY_KIND = "idempotency"
#: The kinds that `mainspring copy` copies to another store: the others are of use to this store only.
COPIED_KINDS = (HEADERS_KIND, SIGNING_KIND, API_KEY_KIND)


class KeyValue(Struct, frozen=True, kw_only=True):
    """One entry, unique by kind and id.

    `created_at` 0 stands for the store's present time. From `expires_at` on, the entry counts as absent.
    """

    kind: str
    id: str
    data: str
    created_at: Ms = 0
    expires_at: Ms | None = None

    def __repr__(self) -> str:
        """Return the kind and id only: the data may be a secret."""
        return f"KeyValue({self.kind!r}, {self.id!r})"
