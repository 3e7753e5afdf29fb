"""The test suite's Valkey and Redis: one of each for a worker process, a prefix for each test."""

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


def tls_url() -> str:
    """A server that speaks TLS; skips with the reason where none was built so: that is then not proven."""
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
    """The URL of a prefix nobody has used."""
    words = {"prefix": f"t{os.getpid()}-{next(_prefixes)}", **options}
    base = base or server_url()
    query = "&".join(f"{name}={value}" for name, value in words.items())
    return f"{base}{'&' if '?' in base else '?'}{query}"
