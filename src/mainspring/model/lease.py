"""Named leases: rows that say which owner has the right to a name, and until when."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.instant import Ms


class Lease(Struct, frozen=True):
    """The row of a named lease: the right of one owner to a name, for example to be the leader or to hold a lock."""

    name: str
    owner: str
    #: The number of the owner's term, one higher with each new term: the fencing token.
    epoch: int
    #: When the term ends, by the clock for leases: the machine's boot clock, or the clock of the store's server.
    expires_at: Ms
    #: When the lease was acquired or last renewed, in wall time.
    renewed_at: Ms
    #: Text that the owner stores with the lease.
    data: str | None = None
    #: False after the owner released the lease. In the result of `find`, also False if the lease has expired.
    live: bool = True
    #: Only in the result of `find`: the time until the term ends; 0 if it has ended.
    left: Ms = 0

    def at(self, now: Ms) -> Lease:
        """Return the lease as `find` shows it at the time `now` of the clock for leases."""
        left = max(0, self.expires_at - now) if self.live else 0
        return replace(self, live=left > 0, left=left)
