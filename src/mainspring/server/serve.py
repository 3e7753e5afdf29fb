"""Life of a serving process: bind the sockets, open the store, check that access is safe, serve, and stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from mainspring.api.route_table import ECHO_PATH
from mainspring.app.configuration import agent_settings, configure_program
from mainspring.app.internals import host_of, http_agents_of, runner_of
from mainspring.app.mainspring import Mainspring
from mainspring.app.shutdown import Stopper
from mainspring.config.redaction import redact_url, show_store
from mainspring.config.reload import Reloader
from mainspring.config.resolve import Resolved, Sources
from mainspring.config.settings import ServerSettings, ServeSettings
from mainspring.model.errors import InvalidInput
from mainspring.server.http import EmbeddedServer, HttpService, bind, make_server
from mainspring.telemetry.log_format import set_level

log = logging.getLogger("mainspring")

#: Interval of the warning that a service which other machines can reach needs no keys.
INSECURE_WARNING_SECONDS = 60.0
#: Interval of that warning on loopback, where a proxy may let other machines in.
INSECURE_LOOPBACK_WARNING_SECONDS = 3_600.0


def make_app(resolved: Resolved, program: Mainspring | None) -> Mainspring:
    """Return the app to serve: `program` with the settings of the service, or a new app without tasks if it is None.

    Configured settings replace those of `program`. Its shutdown time-out is at most the service's.
    """
    settings, scheduler = resolved.settings, resolved.settings.scheduler
    if program is None:
        return Mainspring(
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
            logs_limit=scheduler.logs_limit,
        )
    configure_program(program, resolved)
    own = program.settings
    shorter = replace(own, shutdown_timeout=min(own.shutdown_timeout, scheduler.shutdown_timeout))
    host_of(program).configure(settings=shorter)
    return program


def run(app: Mainspring, sources: Sources, resolved: Resolved, print_line: Callable[[str], Any]) -> None:
    """Serve `app` in the calling thread until SIGTERM or SIGINT. An error of the start is raised unchanged.

    `resolved`: the settings to start with. `sources`: where a reload reads the settings again. `print_line` shows a
    line to the user, such as the address of the service.
    """
    settings = resolved.settings
    sockets = bind(settings.server.host, settings.server.port)
    if settings.server.port == 0:
        settings = replace(settings, server=replace(settings.server, port=sockets[0].getsockname()[1]))
        resolved = replace(resolved, settings=settings)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(app, sockets, sources, resolved, print_line))
    finally:
        for listener in sockets:
            listener.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that makes uvloop's event loop; None, for asyncio's own, if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    app: Mainspring,
    sockets: list[socket.socket],
    sources: Sources,
    resolved: Resolved,
    print_line: Callable[[str], Any],
) -> None:
    """Open the store, check that the service has a key if it needs one, start the engine, serve until a signal, stop.

    The parameters are those of `run`, and `sockets`: the listening sockets. In the role "api", no engine is started. A
    signal also ends the wait for a store that does not answer.
    """
    settings = resolved.settings
    stopper = Stopper(by_ctrl_c=True)
    reloader = Reloader(sources, resolved)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    with stopper.on_signals(signal.SIGTERM, signal.SIGINT):
        service = HttpService(app, settings)
        server = make_server(service.app, settings)
        host_of(app).enable_agents(agent_settings(settings))
        try:
            await stopper.first_of(host_of(app).open_runtime())
            if stopper.requests:
                log.info("stopped before the start was complete")
                return
            await _check_keys(service, settings, app.settings.namespace)
            if settings.role != "api":
                stopper.call_in_signal_handler(runner_of(app).stop_claiming)
                await runner_of(app).start(settings.role)
            reloader.listeners += [
                service.adopt,
                lambda new: set_level(new.logging.level),
                lambda new: http_agents_of(app).adopt(agent_settings(new)),
            ]
            await _until_stopped(app, service, server, sockets, stopper, reloader, print_line)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            await app.close()
    log.info("stopped cleanly")


async def _check_keys(service: HttpService, settings: ServeSettings, namespace: str) -> None:
    """Refuse to start if this process serves the API, every caller needs a key, and there is no key: InvalidInput.

    Only keys of `namespace` count. In every role this queries the store, so that a store that cannot be used ends the
    start with StoreError.
    """
    server = settings.server
    any_key = await service.keys.has_keys()
    if any_key or settings.role not in ("all", "api"):
        return
    if server.insecure_no_auth or (server.on_loopback and not server.require_key):
        return
    where = "" if settings.store.startswith("sqlite:///mainspring.db") else f" --store {redact_url(settings.store)}"
    if namespace != "default":
        where += f" --namespace {shlex.quote(namespace)}"
    reason = f"{server.host} can be reached by others" if not server.on_loopback else "server.require_key is set"
    raise InvalidInput(
        "server.host",
        f"{reason}, and there is no API key",
        f"Make one: mainspring key create NAME{where}; or bind to 127.0.0.1; or serve without keys: --insecure-no-auth",
    )


async def _until_stopped(
    app: Mainspring,
    service: HttpService,
    server: EmbeddedServer,
    sockets: list[socket.socket],
    stopper: Stopper,
    reloader: Reloader,
    print_line: Callable[[str], Any],
) -> None:
    """Serve until the first signal or the end of the server; then stop the event streams, the server and the engine.

    The engine lets attempts finish within its shutdown time-out, and then hands back the others; if a second signal
    comes, it hands back its runs at once. Raises: the error of the server or the engine.
    """
    settings = reloader.settings
    stop = asyncio.Event()
    serving = asyncio.create_task(server.serve(sockets))
    background = [asyncio.create_task(reloader.watch(stop))]
    if has_keys_in_clear(settings.server):
        log.warning(
            "API keys and payloads travel unencrypted to %s. Put a proxy with TLS before the service and set "
            "server.public_url to its https:// URL",
            settings.url,
        )
    if settings.server.insecure_no_auth:
        background.append(asyncio.create_task(_warn_insecure(settings)))
    try:
        await _wait_while_serving(server.listening.wait(), serving)
        _print_address(settings, print_line)
        notify_systemd("READY=1")
        await _wait_while_serving(stopper.wait(), serving)
    finally:
        notify_systemd("STOPPING=1")
        service.close_streams()
        server.stop()
        stop.set()
        for task in background[1:]:  # the reloader ends by itself
            task.cancel()
        draining = asyncio.create_task(runner_of(app).drain(stopper))
        await asyncio.gather(serving, draining, *background, return_exceptions=True)
        for task in (serving, draining):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


def has_keys_in_clear(server: ServerSettings) -> bool:
    """Return True if clients of other machines send their keys to the service itself, which has no TLS.

    False if a proxy with TLS is configured: by a public URL with https, or as a trusted proxy.
    """
    if server.on_loopback or server.insecure_no_auth or server.trusted_proxies:
        return False
    return not (server.public_url or "").lower().startswith("https://")


async def _wait_while_serving(wait: Coroutine[Any, Any, Any], serving: asyncio.Task[None]) -> None:
    """Wait until the coroutine `wait` returns, or until the task `serving` of the server ends."""
    waiting = asyncio.create_task(wait)
    await asyncio.wait([waiting, serving], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _print_address(settings: ServeSettings, print_line: Callable[[str], Any]) -> None:
    """Print a line with the address of the service, and a line with a command to try next."""
    url = settings.url
    print_line(f"Mainspring serves at {url}  ({show_store(settings.store)}, role {settings.role}); Ctrl-C stops")
    if settings.role not in ("all", "api"):
        print_line(f"Next: curl {url}/ready")
        return
    key = "" if settings.server.on_loopback and not settings.server.require_key else ' -H "Authorization: Bearer $KEY"'
    if key or not agent_settings(settings).allow_private:  # the service may not call itself
        print_line(f"Next: curl {url}/api/schedules{key}")
    else:
        json_type, first = "'Content-Type: application/json'", _first_schedule(settings)
        print_line(f"Next: curl {url}/api/schedules -H {json_type} -d '{first}'")


def _first_schedule(settings: ServeSettings) -> str:
    """Return the JSON of a schedule that calls the service's own echo agent once a minute."""
    host, port = settings.server.host, settings.server.port
    agent = f"http://{f'[{host}]' if ':' in host else host}:{port}{ECHO_PATH}"
    return f'{{"name": "first", "cronExpression": "* * * * *", "agentUrl": "{agent}", "payload": {{"say": "hello"}}}}'


def notify_systemd(message: str) -> None:
    """Send a state such as "READY=1" to systemd, if systemd started this process with `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier, contextlib.suppress(OSError):
        notifier.sendto(message.encode(), address.replace("@", "\0", 1))


async def _warn_insecure(settings: ServeSettings) -> None:
    """Warn in the log again and again that the service needs no keys, until cancelled; on loopback less often."""
    pause = INSECURE_LOOPBACK_WARNING_SECONDS if settings.server.on_loopback else INSECURE_WARNING_SECONDS
    while True:
        log.warning(
            "INSECURE: any caller that reaches %s can do anything (--insecure-no-auth). "
            "Make a key with `mainspring key create` and leave the option out",
            settings.url,
        )
        await asyncio.sleep(pause)


__all__ = ["make_app", "run"]
