"""Fixtures: mainsprings on every embedded store."""

from tests.fixtures.mainsprings import clocked, make, ms, plain_ms, program, url

__all__ = ["clocked", "make", "ms", "plain_ms", "program", "url"]
