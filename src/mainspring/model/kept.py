"""What is kept beside the log: secrets, hashed keys, answers already given. No event carries any of it."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms

#: The header values of one schedule revision, as a JSON object.
HEADER = "header"
#: A schedule's secret, with which its calls are signed.
SIGNING = "signing"
#: An API key, hashed.
KEY = "key"
#: The answer to a request that may come again.
IDEMPOTENCY = "idempotency"
#: The kinds that belong to the content of a store and go with a copy of it.
LASTING = (HEADER, SIGNING, KEY)


class Kept(Struct, frozen=True, kw_only=True):
    """One kept thing, unique by kind and id. `created_at` 0 is the store's now; expired, it counts as gone."""

    kind: str
    id: str
    data: str
    created_at: Ms = 0
    expires_at: Ms | None = None

    def __repr__(self) -> str:
        """Without the data, which may be a secret."""
        return f"Kept({self.kind!r}, {self.id!r})"
