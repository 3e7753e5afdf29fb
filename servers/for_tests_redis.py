"""Valkey and Redis for the test suite: one server of each kind per pytest process, one prefix per test."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from servers.postgres import Unavailable
from servers.redis import VARIABLES, Cluster, Kind, RedisServer, Sentineled, certificate, tls_program

T = TypeVar("T")
_prefixes = itertools.count(1)


def skipping(make: Callable[[], T]) -> T:
    """Return `make()`. If that raises Unavailable, skip the test with the reason, or fail it if CI is "true"."""
    try:
        return make()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@cache
def server(kind: Kind) -> RedisServer:
    """Return this process's server of a kind, started at the first call; it stops at the end of the process."""
    return skipping(lambda: RedisServer(kind).start())


def server_url(kind: Kind = "valkey") -> str:
    """Return the URL of the server to test on: TEST_VALKEY_URL or TEST_REDIS_URL, else this process's server."""
    return os.environ.get(VARIABLES[kind]) or server(kind).url


@cache
def cluster() -> Cluster:
    """Return this process's cluster of three masters, started at the first call."""
    return skipping(Cluster)


@cache
def sentineled() -> Sentineled:
    """Return this process's primary, replica and Sentinel. A test that kills or moves one makes a `Sentineled`."""
    return skipping(Sentineled)


def tls_url() -> str:
    """Return the URL of a server with TLS; skip the test with the reason if no server was built with TLS."""
    found = _tls_url()
    if isinstance(found, Unavailable):
        pytest.skip(str(found))
    return found


@cache
def _tls_url() -> str | Unavailable:
    try:
        kind, program = tls_program()
        pair = certificate(Path(tempfile.mkdtemp(prefix="mainspring-tls-")))
    except Unavailable as error:
        return error
    return f"{RedisServer(kind, program=program, certificate=pair).start().url}?tls_ca={pair[0]}"


def fresh_url(base: str | None = None, **options: object) -> str:
    """Return the URL of a prefix that no other test uses.

    `base`: the URL of the server; None: `server_url()`. `options` are added to the URL's query.
    """
    words = {"prefix": f"t{os.getpid()}-{next(_prefixes)}", **options}
    base = base or server_url()
    query = "&".join(f"{name}={value}" for name, value in words.items())
    return f"{base}{'&' if '?' in base else '?'}{query}"
