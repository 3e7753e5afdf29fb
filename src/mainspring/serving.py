"""The life of a serving process: bind, open, check who may come in, start, tell, and stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from mainspring.api.server import EmbeddedServer, Service, bind, make_server
from mainspring.app import Mainspring
from mainspring.config.reload import Reloader
from mainspring.config.resolve import DEFAULT, Resolved, Sources
from mainspring.config.settings import ServeSettings
from mainspring.config.shown import shown_url
from mainspring.model.errors import InvalidInput
from mainspring.model.http import AgentSettings
from mainspring.model.settings import adjusted
from mainspring.signals import Stopper
from mainspring.telemetry.lines import set_level

log = logging.getLogger("mainspring")

#: Seconds between two reminders that everybody may do everything.
REMIND = 60.0


def make_app(resolved: Resolved, program: Mainspring | None) -> Mainspring:
    """The app behind the service: a program's own, with what was asked for explicitly, or a plain one."""
    settings, origins = resolved.settings, resolved.origins
    scheduler = settings.scheduler
    if program is not None:
        if origins["store"] != DEFAULT:
            program.url = settings.store
        if origins["broker"] != DEFAULT:
            program.broker = settings.broker
        if origins["scheduler.workers"] != DEFAULT:
            program.settings = adjusted(program.settings, concurrency=scheduler.workers)
        shutdown = min(program.settings.shutdown_timeout, scheduler.shutdown_timeout)
        program.settings = replace(program.settings, shutdown_timeout=shutdown)
        app = program
    else:
        app = Mainspring(
            settings.store,
            broker=settings.broker,
            name=scheduler.name,
            namespace=scheduler.namespace,
            concurrency=scheduler.workers,
            lease_ttl=scheduler.lease_ttl / 1000,
            poll_interval=scheduler.poll_interval / 1000,
            shutdown_timeout=scheduler.shutdown_timeout / 1000,
            history=None if scheduler.history is None else scheduler.history / 1000,
            payload_limit=scheduler.payload_limit,
        )
    return app


def agents_of(settings: ServeSettings) -> AgentSettings:
    """How agents are called: private addresses while the service itself is private, unless it was said."""
    private = settings.agents.allow_private
    return replace(
        settings.agents,
        allow_private=settings.server.on_loopback if private is None else private,
        public_url=settings.url,
    )


def run(app: Mainspring, sources: Sources, resolved: Resolved, say: Callable[[str], Any]) -> None:
    """Serve until a signal; errors of the start come out as they are."""
    settings = resolved.settings
    sockets = bind(settings.server.host, settings.server.port)
    if settings.server.port == 0:
        settings = replace(settings, server=replace(settings.server, port=sockets[0].getsockname()[1]))
        resolved = replace(resolved, settings=settings)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(app, sockets, sources, resolved, say))
    finally:
        for one in sockets:
            one.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    app: Mainspring, sockets: list[socket.socket], sources: Sources, resolved: Resolved, say: Callable[[str], Any]
) -> None:
    settings = resolved.settings
    stopper = Stopper()
    reloader = Reloader(sources, resolved)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    with stopper.on_signals(signal.SIGTERM, signal.SIGINT):
        service = Service(app, settings)
        server = make_server(service.app, settings)
        app.agents = agents_of(settings)
        try:
            await _check_keys(service, settings)
            if settings.role != "api":
                stopper.at_once(app.claim_no_more)
                await app.start(settings.role)
            reloader.listeners += [
                service.adopt,
                lambda new: set_level(new.logging.level),
                lambda new: app.adopt_agents(agents_of(new)),
            ]
            await _until_stopped(app, service, server, sockets, stopper, reloader, say)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            await app.close()
    log.info("stopped in order")


async def _check_keys(service: Service, settings: ServeSettings) -> None:
    """Strangers need a key, so there must be one; it also is the first question to the store."""
    server = settings.server
    any_key = await service.keys.any()
    if any_key or settings.role not in ("all", "api"):
        return
    if server.insecure_no_auth or (server.on_loopback and not server.require_key):
        return
    where = "" if settings.store.startswith("sqlite:///mainspring.db") else f" --store {shown_url(settings.store)}"
    what = f"{server.host} can be reached by others" if not server.on_loopback else "server.require_key is set"
    raise InvalidInput(
        "server.host",
        f"{what}, and there is no API key",
        f"Make one: mainspring key create NAME{where}; or bind to 127.0.0.1; or accept strangers: --insecure-no-auth",
    )


async def _until_stopped(
    app: Mainspring,
    service: Service,
    server: EmbeddedServer,
    sockets: list[socket.socket],
    stopper: Stopper,
    reloader: Reloader,
    say: Callable[[str], Any],
) -> None:
    settings = reloader.settings
    stop = asyncio.Event()
    serving = asyncio.create_task(server.serve(sockets))
    beside = [asyncio.create_task(reloader.watch(stop))]
    if settings.server.insecure_no_auth and not settings.server.on_loopback:
        beside.append(asyncio.create_task(_remind(settings)))
    try:
        await _first(server.listening.wait(), serving)
        _tell(settings, say)
        notify("READY=1")
        await _first(stopper.wait(), serving)
    finally:
        notify("STOPPING=1")
        service.close_streams()
        server.stop()
        stop.set()
        for task in beside[1:]:
            task.cancel()
        draining = asyncio.create_task(app.drain(stopper))
        await asyncio.gather(serving, draining, *beside, return_exceptions=True)
        for one in (serving, draining):
            if not one.cancelled() and (error := one.exception()) is not None:
                raise error


async def _first(wait: Coroutine[Any, Any, Any], serving: asyncio.Task[None]) -> None:
    """Wait, unless the server ends before."""
    waiting = asyncio.create_task(wait)
    await asyncio.wait([waiting, serving], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _tell(settings: ServeSettings, say: Callable[[str], Any]) -> None:
    url = settings.url
    say(f"Mainspring serves at {url}  ({shown_url(settings.store)}, role {settings.role}); Ctrl-C stops")
    key = "" if settings.server.on_loopback and not settings.server.require_key else ' -H "Authorization: Bearer $KEY"'
    if settings.role not in ("all", "api"):
        say(f"Next: curl {url}/ready")
        return
    body = '{"name": "hello", "cronExpression": "* * * * *", "agentId": "me", "agentUrl": "http://localhost:8000/"}'
    say(f"Next: curl {url}/api/schedules{key} -H 'Content-Type: application/json' -d '{body}'")


def notify(message: str) -> None:
    """Tell systemd (`Type=notify`); nothing where it did not start us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.sendto(message.encode(), address.replace("@", "\0", 1))


async def _remind(settings: ServeSettings) -> None:
    while True:
        log.warning(
            "INSECURE: anybody who reaches %s can do anything (--insecure-no-auth). `mainspring key create` ends that",
            settings.url,
        )
        await asyncio.sleep(REMIND)


__all__ = ["agents_of", "make_app", "run"]
