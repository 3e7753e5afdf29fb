"""Bad URLs, unusable servers and too much data: each error is one line that names the fix, and no data is lost."""

from __future__ import annotations

import logging
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.redis import RedisStore
from mainspring.backends.redis.database import Database
from mainspring.backends.redis.server_checks import find_refusal
from mainspring.backends.redis.settings import SCHEMES, read_url
from mainspring.model.errors import (
    InvalidInput,
    PayloadTooLarge,
    StoreDenied,
    StoreError,
    StoreNearlyFull,
    StoreReadOnly,
    StoreUnavailable,
)
from mainspring.model.retention import Retention
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Offer, Runs
from mainspring.runtime.store_url import open_store
from mainspring.testing.contract.factories import Ids, enqueue_change, finish_change, make_run
from servers.for_tests_redis import cluster, fresh_url, sentineled, server, server_url, skipping
from servers.proxy import Proxy
from servers.redis import RedisServer, certificate, until

#: These servers are removed with their test, so `events verify` has nothing to read.
pytestmark = pytest.mark.tampers


async def failed_open(url: str) -> StoreError:
    """Return the error that opening a store at this URL raises."""
    store = RedisStore(url)
    with pytest.raises(StoreError) as caught:
        await store.open()
    return caught.value


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    one = skipping(lambda: RedisServer(fsync=None).start())
    yield one
    one.remove()


# ── URLs ────────────────────────────────────────────────────────────────────


def test_every_scheme_is_known() -> None:
    assert len(SCHEMES) == 12
    for scheme in SCHEMES:
        store = open_store(f"{scheme}://host/{'service' if 'sentinel' in scheme else ''}", SystemClock())
        assert isinstance(store, RedisStore)
        assert (store.settings.tls, store.settings.mode) == SCHEMES[scheme]


def test_a_whole_url_is_read() -> None:
    given = read_url(
        "rediss+sentinel://me:p%40ss@a:1,[::1]:2,c/prime/3?prefix=shop&pool=9&wait=2s&timeout=1s&tls_verify=0"
        "&sentinel_user=s&sentinel_password=t&client_name=us"
    )
    assert given.hosts == (("a", 1), ("::1", 2), ("c", 26379))
    assert (given.service, given.db, given.user, given.password) == ("prime", 3, "me", "p@ss")
    assert (given.prefix, given.pool, given.wait, given.timeout, given.client_name) == ("shop", 9, 2_000, 1_000, "us")
    assert (given.tls, given.tls_verify, given.sentinel_user, given.sentinel_password) == (True, False, "s", "t")
    assert "p@ss" not in given.where
    assert read_url("valkey://") == read_url("valkey://localhost:6379/0")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("radis://host", "Did you mean 'redis'? Known are memory, sqlite"),
        ("nosql://host", "redis, rediss, valkey, valkeys, redis+sentinel"),
        ("redis://host:port", "'host:port' is no host and port"),
        ("redis://host:99999", "is no host and port"),
        ("redis://a,b", "names several servers"),
        ("redis://host/one", "'one' is no number of a database. Write redis://"),
        ("redis://host/0/1", "no number of a database"),
        ("redis+sentinel://host", "the Sentinels' name of the primary). Write redis+sentinel://"),
        ("redis+cluster://host/1", "a cluster has no database 1"),
        ("redis://host?prefx=a", "Did you mean 'prefix'"),
        ("redis://host?prefix={a}b", "is not allowed. Use 1 to 100 letters"),
        ("redis://host?prefix=", "prefix='' is not allowed"),
        ("redis://host?pool=0", "pool='0' is not a number from 1 to 100"),
        ("redis://host?wait=soon", "wait"),
        ("rediss://host?tls_verify=maybe", "tls_verify='maybe' is not known. Use 1 or 0"),
        ("rediss://host?tls_cert=a.crt", "tls_cert is given without tls_key. Give both"),
        ("redis://host?client_name=a b", "client_name"),
    ],
)
def test_the_error_of_a_bad_url_names_the_fix(url: str, expected: str) -> None:
    with pytest.raises(InvalidInput, match="url") as caught:
        open_store(url, SystemClock())
    assert expected in str(caught.value)


def test_without_the_driver_the_error_names_the_install_command() -> None:
    program = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'redis':\n"
        "            raise ModuleNotFoundError(\"No module named 'redis'\", name='redis')\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from mainspring import Mainspring\n"
        "Mainspring('valkey://x')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingExtra: Redis and Valkey need redis-py. Install it: pip install 'mainspring[redis]'" in done.stderr


# ── servers that must not be used ───────────────────────────────────────────


async def test_no_server_at_the_address() -> None:
    why = await failed_open("redis://127.0.0.1:9/0?wait=0s")
    assert isinstance(why, StoreUnavailable)
    assert "Redis at 127.0.0.1:9/0 does not answer" in str(why)
    assert "Start the server or check the URL (?wait=2m waits longer)" in str(why)


async def test_a_server_that_is_loading_is_waited_for(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loading server answers INFO and nothing else: a store that opened then would fail at its next call."""
    original, asked = Database.run_commands, 0

    async def read(self: Database, *commands: tuple[str, ...]) -> list[bytes]:
        nonlocal asked
        answers: list[bytes] = await original(self, *commands)
        if commands == (("INFO",),):
            asked += 1
            if asked <= 2:
                assert b"\nloading:0" in answers[0]
                answers[0] = answers[0].replace(b"\nloading:0", b"\nloading:1")
        return answers

    monkeypatch.setattr(Database, "run_commands", read)
    store = RedisStore(own_server.url)
    with caplog.at_level(logging.WARNING):
        await store.open()
    assert [record.message.count("is loading its data; next try in") for record in caplog.records[:2]] == [1, 1]
    assert asked >= 3
    await store.close()
    asked = 0
    why = await failed_open(f"{own_server.url}?wait=0s")
    assert isinstance(why, StoreUnavailable)
    assert "is loading its data; gave up after 0 s" in str(why)


async def test_a_wrong_password() -> None:
    one = skipping(lambda: RedisServer(password="right", fsync=None).start())
    try:
        for login in (":wrong@", "", "nobody:right@"):
            why = await failed_open(f"redis://{login}127.0.0.1:{one.port}/0")
            assert isinstance(why, StoreDenied), why
            assert "refused the user or the password" in str(why)
            assert "wrong" not in str(why)
        store = RedisStore(one.url)
        await store.open()
        await store.close()
    finally:
        one.remove()


async def test_a_user_that_lacks_a_right(own_server: RedisServer) -> None:
    own_server.do("ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha", "-config")
    store = RedisStore(f"redis://weak:pw@127.0.0.1:{own_server.port}/0")
    await store.open()  # without CONFIG it uses INFO alone
    assert store.warnings == (
        "persistence is off, or by snapshots only: a crash of the server loses data. Set appendonly yes",
    )
    with pytest.raises(StoreDenied, match=r"the user lacks a right .* Grant it: ACL SETUSER"):
        await store.lease("a", "me", 1_000)
    await store.close()
    own_server.do("ACL", "SETUSER", "right", "on", ">pw", "~{mainspring}:*", "&{mainspring}:*", "+@all")
    store = RedisStore(f"redis://right:pw@127.0.0.1:{own_server.port}/0")
    await store.open()
    assert (await store.apply([enqueue_change(Ids(), make_run(Ids()))])).results[0].ok
    assert not await store.wait(0.05)
    await store.close()


async def test_a_read_only_replica(own_server: RedisServer) -> None:
    replica = RedisServer(replica_of=own_server, fsync=None).start()
    try:
        until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica", replica.log)
        why = await failed_open(replica.url)
        assert isinstance(why, StoreReadOnly)
        assert f"read-only replica of 127.0.0.1:{own_server.port}. Give the primary's address, or a Sentinel's" in str(
            why
        )
        store = RedisStore(own_server.url)
        await store.open()
        assert any("min-replicas-to-write is 0" in warning for warning in store.warnings)
        # The server was a primary when the store was opened and is a replica now, so it refuses writes.
        own_server.do("REPLICAOF", "127.0.0.1", replica.port)
        with pytest.raises(StoreReadOnly, match="read-only replica"):
            await store.lease("a", "me", 1_000)
        await store.close()
    finally:
        replica.remove()


async def test_an_eviction_policy_that_would_throw_data_away(own_server: RedisServer) -> None:
    own_server.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store = RedisStore(own_server.url)
    await store.open()  # without maxmemory nothing is evicted
    assert any("maxmemory-policy is allkeys-lru" in warning for warning in store.warnings)
    await store.close()
    own_server.do("CONFIG", "SET", "maxmemory", "100mb")
    why = str(await failed_open(own_server.url))
    assert "evicts with maxmemory-policy allkeys-lru" in why
    assert "CONFIG SET maxmemory-policy noeviction" in why
    own_server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await store.open()
    assert not any("maxmemory-policy" in warning for warning in store.warnings)
    await store.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "persistence is off: a restart of the server loses everything. Set appendonly yes"),
        ({"save": "900 1"}, "by snapshots only"),
        ({"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, ""),
    ],
)
async def test_persistence_settings_are_checked(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture, settings: dict[str, str], expected: str
) -> None:
    for name, value in settings.items():
        own_server.do("CONFIG", "SET", name, value)
    async with Mainspring(own_server.url).running() as ms:
        assert ms.health().ok
        warnings = ms.health().warnings
    logged = [record for record in caplog.records if record.name == "mainspring.backends.redis"]
    assert len(warnings) == len(logged) == (1 if expected else 0)
    for warning, record in zip(warnings, logged, strict=True):
        assert expected in warning
        assert record.levelno == logging.WARNING
        assert warning in record.getMessage()


def test_a_server_that_is_too_old() -> None:
    assert "6.2 or newer" in str(find_refusal({"redis_version": "6.0.16"}, "server", "it"))
    assert find_refusal({"redis_version": "6.2.0"}, "server", "it") is None
    assert find_refusal({"redis_version": "7.2.4", "server_name": "valkey"}, "server", "it") is None


async def test_a_server_of_another_kind_than_the_url_says() -> None:
    node, sentinel = cluster().nodes[0], sentineled().sentinel
    assert "is a node of a cluster. Write redis+cluster://" in str(await failed_open(node.url))
    assert "is a Sentinel. Write redis+sentinel://" in str(await failed_open(sentinel.url))
    plain = server("valkey").port
    assert "is not a cluster (" in str(await failed_open(f"redis+cluster://127.0.0.1:{plain}?wait=0s"))
    why = str(await failed_open(f"redis+sentinel://127.0.0.1:{plain}/mymaster?wait=0s"))
    assert "is not a Sentinel" in why
    why = str(await failed_open(f"redis+sentinel://127.0.0.1:{sentinel.port}/other?wait=0s"))
    assert "it knows no service 'other', only mymaster. Correct the URL" in why


async def test_a_cluster_without_a_node_for_the_slot() -> None:
    node = skipping(lambda: RedisServer(clustered=True, fsync=None).start())
    try:
        why = await failed_open(f"redis+cluster://127.0.0.1:{node.port}?prefix=shop&wait=0s")
        assert isinstance(why, StoreUnavailable)
        assert "no node has slot" in str(why)
        assert "where every key of prefix 'shop' lies" in str(why)
    finally:
        node.remove()


async def test_tls_and_its_certificate(tmp_path: Path) -> None:
    """The client's part of TLS, against a proxy that terminates TLS."""
    chain, key = skipping(lambda: certificate(tmp_path))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    async with Proxy(server_url(), tls=context) as proxy:
        url = fresh_url(proxy.url.replace("redis://", "rediss://"))
        store = RedisStore(f"{url}&tls_ca={chain}")
        await store.open()
        assert await store.lease("a", "me", 1_000) is not None
        await store.close()
        lax = RedisStore(f"{url}&tls_verify=0")
        await lax.open()
        await lax.close()
        why = await failed_open(f"{url}&wait=0s")
        assert isinstance(why, StoreDenied), why
        assert "Check the scheme, ?tls_ca= and the certificate's names" in str(why)


# ── too much data ───────────────────────────────────────────────────────────


async def test_a_payload_over_the_limit_stores_nothing() -> None:
    ms = Mainspring(fresh_url())

    @ms.task
    def take(text: str) -> None: ...

    async with ms.running():
        with pytest.raises(PayloadTooLarge):
            await take.enqueue("x" * 70_000)
        assert await host_of(ms).call(lambda runtime: runtime.store.find(Runs())) == []


async def test_at_nine_tenths_of_maxmemory_new_work_is_refused_and_other_work_goes_on(own_server: RedisServer) -> None:
    store, ids = RedisStore(own_server.url), Ids()
    await store.open()
    try:
        await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(3)])
        used = int(own_server.info("memory")["used_memory"])
        own_server.do("CONFIG", "SET", "maxmemory", int(used / 0.93))
        store._db.memory._read_at = float("-inf")
        with pytest.raises(StoreNearlyFull, match=r"9\d% of its maxmemory .* Raise maxmemory, or keep less history"):
            await store.apply([enqueue_change(ids, make_run(ids))])
        claimed = (await store.claim(Offer("w", ("default/default",), ("t",), 30_000), 2)).claims
        assert len(claimed) == 2
        leases = [(claim.run.id, claim.run.epoch) for claim in claimed]
        assert (await store.renew("w", leases, 30_000)).kept == {run_id for run_id, _ in leases}
        done = await store.apply([finish_change(ids, claim.run) for claim in claimed])
        assert [result.status for result in done.results] == ["accepted", "accepted"]
        assert (await store.purge(Retention(ended_before=done.now + 1), 10)).runs == 2
        own_server.do("CONFIG", "SET", "maxmemory", 10 * used)
        store._db.memory._read_at = float("-inf")
        assert (await store.apply([enqueue_change(ids, make_run(ids))])).results[0].ok
    finally:
        await store.close()


async def test_near_maxmemory_outcomes_are_stored_beside_refused_enqueues(own_server: RedisServer) -> None:
    """Both share a batch: a refused change must not delay the others."""
    ms = Mainspring(own_server.url)

    @ms.task
    async def note(number: int) -> int:
        if number == 0:
            await host_of(ms).call(lambda runtime: _press(own_server, runtime.store))
        with pytest.raises(StoreNearlyFull):
            await note.enqueue(99)
        return number

    async with ms.running():
        runs = await note.enqueue_many([(number,) for number in range(5)])
        assert [await run.result(timeout="20s") for run in runs] == list(range(5))


async def _press(server: RedisServer, store: object) -> None:
    assert isinstance(store, RedisStore)
    server.do("CONFIG", "SET", "maxmemory", int(int(server.info("memory")["used_memory"]) / 0.93))
    store._db.memory._read_at = float("-inf")
