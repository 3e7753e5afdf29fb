"""A named lease: which instance, leader or lock holder has it, and until when."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms


class Lease(Struct, frozen=True):
    """A named lease, of an instance, a leader or a lock. `epoch` grows by one with each new term."""

    name: str
    owner: str
    epoch: int
    expires_at: Ms
    renewed_at: Ms
    data: str | None = None
    live: bool = True
