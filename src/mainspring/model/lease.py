"""Named leases: which instance, leader or lock holder has a name, and until when."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms


class Lease(Struct, frozen=True):
    """The row of a named lease: the right of one owner to a name, such as an instance, a leader or a lock has it."""

    name: str
    owner: str
    #: The number of the term, one higher with each new term: the fencing token.
    epoch: int
    #: When the term ends, by the clock for leases: the machine's boot clock, or the clock of the store's server.
    expires_at: Ms
    #: When the lease was acquired or last renewed, in wall time.
    renewed_at: Ms
    #: Text that the owner stores with the lease.
    data: str | None = None
    #: False once the term was released; `find` also sets it to False once the term has expired.
    live: bool = True
