"""Fixtures: a service in this process and a client of it."""

from tests.fixtures.service_client import api, ms

__all__ = ["api", "ms"]
