"""Key-value entries: data that the store holds beside the log, such as secrets, hashed API keys and stored answers.

No event carries this data, so it can be deleted, and no secret enters the log.
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
#: Kind of the stored answer to an API request, which a client gets if it sends the request again.
IDEMPOTENCY_KIND = "idempotency"
#: Kind of what code declared last about a schedule: its definition, also while a person's edit is in force.
DECLARED_KIND = "declared"
#: The kinds that `mainspring copy` copies to another store. Entries of other kinds are of use to their own store only.
COPIED_KINDS = (HEADERS_KIND, SIGNING_KIND, API_KEY_KIND, DECLARED_KIND)


class KeyValue(Struct, frozen=True, kw_only=True):
    """One key-value entry, unique by kind and id: data that no event carries, such as a secret or a hashed API key."""

    #: One of the constants with the suffix `_KIND`.
    kind: str
    id: str
    data: str
    #: When the store wrote the entry. 0 in an entry that is to be written.
    created_at: Ms = 0
    #: From this instant on the entry counts as absent. None: it never expires.
    expires_at: Ms | None = None

    def __repr__(self) -> str:
        """Return the kind and id only, because the data may be a secret."""
        return f"KeyValue({self.kind!r}, {self.id!r})"
