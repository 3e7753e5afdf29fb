"""How long the holder of a lease relies on it."""

from __future__ import annotations

#: The part of a lease, counted from before its request was sent, in which its holder relies on it. The remaining
#: 10 % cover clocks that differ and commits that take their time.
LEASE_TRUST_RATIO = 0.9
