"""Key-value entries: data that the store holds beside the log, such as secrets, hashed keys and stored answers.

No event carries them, so they can be deleted, and no secret enters the log.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms

#: Kind of the header values of one schedule revision, as a JSON object.
HEADERS_KIND = "header"
#: Kind of the secrets with which the HTTP calls of one schedule are signed.
SIGNING_KIND = "signing"
#: Kind of an API key, of which only a hash is stored.
API_KEY_KIND = "key"
#: Kind of the stored answer to an API request, for a client that sends the request again.
IDEMPOTENCY_KIND = "idempotency"
#: The kinds that `mainspring copy` copies to another store: the others are of use to this store only.
COPIED_KINDS = (HEADERS_KIND, SIGNING_KIND, API_KEY_KIND)


class KeyValue(Struct, frozen=True, kw_only=True):
    """One entry, unique by kind and id."""

    #: One of the kinds above.
    kind: str
    id: str
    data: str
    #: 0 in an entry to be written: the store sets its present time.
    created_at: Ms = 0
    #: From this instant on the entry counts as absent. None: it never expires.
    expires_at: Ms | None = None

    def __repr__(self) -> str:
        """Return the kind and id only: the data may be a secret."""
        return f"KeyValue({self.kind!r}, {self.id!r})"
