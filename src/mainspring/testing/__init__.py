"""The test kit: virtual time that drives the real engine, manual stepping, inline runs, the store contract."""

from mainspring.testing.kit import Kit
from mainspring.testing.travel import Travel, inline, manual, travel
from mainspring.testing.virtual import VirtualClock, VirtualTime

__all__ = ["Kit", "Travel", "VirtualClock", "VirtualTime", "inline", "manual", "travel"]
