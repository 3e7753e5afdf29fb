"""The test kit for users: virtual time, a pytest fixture, step-by-step and inline execution, the contract suites."""

from mainspring.testing.kit import Kit
from mainspring.testing.time_travel import Travel, inline, manual, travel
from mainspring.testing.virtual_time import VirtualClock, VirtualTime

__all__ = ["Kit", "Travel", "VirtualClock", "VirtualTime", "inline", "manual", "travel"]
