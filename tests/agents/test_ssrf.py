"""No agent URL reaches a forbidden address; and without the guard nearly all of these would."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import AgentSettings, Http, InvalidInput, Mainspring
from mainspring.agents.addresses import judge_address
from mainspring.agents.guard import AddressGuard
from mainspring.agents.vault import CallSecrets
from mainspring.executors.http import HttpClient, http_handler
from mainspring.model.http import HttpTarget, check_url
from mainspring.model.outcome import Failed, Outcome
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run
from mainspring.ports.clock import SystemClock
from mainspring.ports.executor import Attempt, HeldRun
from tests.agents.ssrf_corpus import CORPUS, HOSTS, NAMES, NEVER, PUBLIC, urls

ABROAD = AgentSettings(allow_private=False)  # as a service that is bound to the world


class Open(AddressGuard):
    """No guard: what would happen without it."""

    def check_name(self, host: str) -> None: ...

    def check_address(self, text: str, host: str = "") -> str:
        return text


class Wire:
    """Sees every address that is dialled, and lets none through; answers names from the table."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.lookups: dict[str, itertools.cycle[list[str]]] = {}
        self.asked: list[str] = []

    async def connect(self, _loop: Any, _socket: Any, address: Any) -> None:
        self.dialled.append(address[0])
        raise ConnectionRefusedError(111, "the test accepts no connection")

    def getaddrinfo(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = (host.decode() if isinstance(host, bytes) else str(host)).lower().rstrip(".")
            self.asked.append(name)
            if name not in NAMES:
                family, kind = kwargs.get("family", 0), kwargs.get("type", 0)
                return real(host, port, family=family, type=kind, flags=socket.AI_NUMERICHOST)
            found = next(self.lookups.setdefault(name, itertools.cycle(NAMES[name])))
            return [_entry(address, port) for address in found]

        return ask

    @property
    def forbidden(self) -> set[str]:
        return set(self.dialled) - set(PUBLIC)


def _entry(address: str, port: int) -> tuple[Any, ...]:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", lambda *given: wire.connect(*given), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", wire.getaddrinfo(socket.getaddrinfo))
    return wire


async def call(guard: AddressGuard, url: str, settings: AgentSettings = ABROAD) -> Outcome:
    """One call of an agent, as the worker makes it."""

    async def nothing(_: Run) -> CallSecrets:
        return CallSecrets({}, ())

    client = HttpClient(settings, guard, SystemClock(), nothing)
    run = Run(id="00000000-0000-8000-8000-000000000000", task="http", options=RunOptions(http=HttpTarget(url)))
    try:
        return await client.call(HeldRun(Attempt(run, None, http_handler(settings), 5_000), 1 << 60))
    finally:
        await client.close()


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) == len(set(CORPUS))
    assert len(CORPUS) >= 120


async def test_no_url_of_the_corpus_reaches_a_forbidden_address(wire: Wire) -> None:
    guard, refused, called = AddressGuard(ABROAD), 0, 0
    for url in CORPUS:
        try:
            checked = check_url(url)
        except InvalidInput:
            refused += 1
            continue
        called += 1
        outcome = await call(guard, checked)
        assert isinstance(outcome, Failed), url
        assert not wire.dialled, (url, wire.dialled)
    assert refused >= 30
    assert called >= 100


async def test_nor_does_one_that_was_stored_without_being_checked(wire: Wire) -> None:
    for url in CORPUS:
        assert isinstance(await call(AddressGuard(ABROAD), url), Failed), url
    assert not wire.forbidden, wire.forbidden


async def test_the_corpus_bites_when_the_guard_is_off(wire: Wire) -> None:
    biting = set()
    for url in urls(HOSTS):
        before = len(wire.dialled)
        await call(Open(ABROAD), url)
        if any(address not in PUBLIC for address in wire.dialled[before:]):
            biting.add(url)
    assert len(biting) >= 100, sorted(set(urls(HOSTS)) - biting)
    assert {"127.0.0.1", "169.254.169.254", "10.0.0.1", "0.0.0.0", "::1", "fe80::1"} <= wire.forbidden


async def test_metadata_and_link_local_are_never_called_whatever_is_allowed(wire: Wire) -> None:
    everything = AgentSettings(allow_private=True, allow_hosts=("0.0.0.0/0", "::/0", *NAMES))
    for url in urls(NEVER):
        outcome = await call(AddressGuard(everything), url, everything)
        assert isinstance(outcome, Failed), url
    assert not wire.forbidden, wire.forbidden


async def test_what_is_public_is_called(wire: Wire) -> None:
    for url in (
        "http://public.test/",
        "https://public6.test:8443/",
        "http://93.184.216.34/",
        "http://[2606:2800:220:1::1]/",
    ):
        outcome = await call(AddressGuard(ABROAD), url)
        assert isinstance(outcome, Failed)
        assert outcome.retry  # a network error, no verdict
    assert set(wire.dialled) == set(PUBLIC)


@pytest.mark.parametrize("name", ["rebind.test", "rebind-meta.test"])
async def test_a_name_that_changes_its_address_is_judged_as_it_is_dialled(wire: Wire, name: str) -> None:
    guard = AddressGuard(ABROAD)
    for _ in range(200):
        await call(guard, f"http://{name}/")
    assert wire.asked.count(name) == 200  # asked once for each dial: nothing is judged and then asked again
    assert wire.dialled == ["93.184.216.34"] * 100


async def test_a_check_before_a_second_lookup_is_fooled(wire: Wire) -> None:
    guard = AddressGuard(ABROAD)
    for _ in range(200):
        try:
            await guard.addresses("rebind.test", 80)
        except Exception:
            continue
        await call(Open(ABROAD), "http://rebind.test/")
    assert "127.0.0.1" in wire.dialled


async def test_nothing_arrives_at_a_real_port_either() -> None:
    arrived = 0

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived += 1
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for host in ("127.0.0.1", "localhost", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"):
            outcome = await call(AddressGuard(ABROAD), f"http://{host}:{port}/")
            assert isinstance(outcome, Failed)
            assert (outcome.reason in ("forbidden", "agent"), outcome.retry) == (True, False), host
        assert arrived == 0
        await call(AddressGuard(AgentSettings()), f"http://127.0.0.1:{port}/")
        assert arrived == 1  # bound to loopback it is what source 002 does


# ── settings ───────────────────────────────────────────────────────────────


async def test_private_addresses_are_a_matter_of_settings(wire: Wire) -> None:
    for settings, on_loopback, goes in (
        (AgentSettings(), True, True),
        (AgentSettings(), False, False),
        (AgentSettings(allow_private=True), False, True),
        (AgentSettings(allow_private=False), True, False),
        (AgentSettings(allow_private=False, allow_hosts=("ten.test",)), False, True),
        (AgentSettings(allow_private=False, allow_hosts=("10.1.0.0/16",)), False, True),
        (AgentSettings(allow_private=False, allow_hosts=("10.2.0.0/16", "home.test")), False, False),
    ):
        wire.dialled.clear()
        await call(AddressGuard(settings, on_loopback=on_loopback), "http://ten.test/", settings)
        assert wire.dialled == (["10.1.2.3"] if goes else []), settings


async def test_ports_can_be_narrowed(wire: Wire) -> None:
    narrow = AgentSettings(allow_ports=(443, 8443))
    for port, goes in ((443, True), (8443, True), (80, False), (22, False)):
        wire.dialled.clear()
        for host in ("public.test", "93.184.216.34"):
            await call(AddressGuard(narrow), f"http://{host}:{port}/", narrow)
        assert len(wire.dialled) == (2 if goes else 0), port


async def test_at_save_a_name_without_an_address_is_warned_of_and_a_forbidden_one_is_refused(wire: Wire) -> None:
    guard = AddressGuard(ABROAD)
    assert await guard.check_url("http://public.test/") == []
    (warning,) = await guard.check_url("http://nobody.invalid/")
    assert "nobody.invalid has no address now" in warning
    with pytest.raises(InvalidInput, match=r"url: meta\.test \(169\.254\.169\.254\) is a link-local"):
        await guard.check_url("http://meta.test/")
    with pytest.raises(InvalidInput, match="allow_private"):
        await guard.check_url("http://10.0.0.1/")


async def test_a_schedule_to_a_forbidden_address_is_not_stored(wire: Wire) -> None:
    ms = Mainspring("memory://", agents=ABROAD)
    with pytest.raises(InvalidInput, match="loopback or private"):
        await ms.schedule("x", Http("http://127.0.0.1/"), every="1h")
    assert await ms.schedules() == []
    await ms.schedule("later", Http("http://nobody.invalid/"), every="1h")
    assert [one.name for one in await ms.schedules()] == ["later"]


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"agents\.allow_hosts: '10\.0\.0\.1/99' is not a network"):
        AddressGuard(AgentSettings(allow_hosts=("10.0.0.1/99",)))


@pytest.mark.parametrize("network", ["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"])
def test_the_table_agrees_with_the_standard_library_where_that_is_right(network: str) -> None:
    block = ipaddress.ip_network(network)
    for address in (block[0], block[1], block[-1]):
        assert judge_address(address) != "public"
        assert judge_address(ipaddress.ip_address(f"::ffff:{address}")) == judge_address(address)
    for outside in (block[0] - 1, block[-1] + 1):
        assert judge_address(outside) == "public", outside
