"""The test suite's Valkey and Redis: one of each for a worker process, a prefix for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest

from servers.postgres import Unavailable
from servers.redis import VARIABLES, Cluster, Kind, RedisServer, Sentineled

T = TypeVar("T")
_prefixes = itertools.count(1)


def skipping(make: Callable[[], T]) -> T:
    """What `make` brings up; skips with the reason where it cannot be had, and fails in CI."""
    try:
        return make()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@cache
def server(kind: Kind) -> RedisServer:
    """This process's own server of a kind; it goes with the process."""
    return skipping(lambda: RedisServer(kind).start())


def server_url(kind: Kind = "valkey") -> str:
    """Where to test: a server that was given, or our own."""
    return os.environ.get(VARIABLES[kind]) or server(kind).url


@cache
def cluster() -> Cluster:
    """This process's own cluster of three masters."""
    return skipping(Cluster)


@cache
def sentineled() -> Sentineled:
    """This process's own primary, replica and Sentinel; for tests that leave them as they are."""
    return skipping(Sentineled)


def fresh_url(base: str | None = None, **options: object) -> str:
    """The URL of a prefix nobody has used."""
    words = {"prefix": f"t{os.getpid()}-{next(_prefixes)}", **options}
    base = base or server_url()
    query = "&".join(f"{name}={value}" for name, value in words.items())
    return f"{base}{'&' if '?' in base else '?'}{query}"
