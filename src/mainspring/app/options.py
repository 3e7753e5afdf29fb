"""Types of the options of `Mainspring.from_config`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from mainspring.model.http import AgentSettings
from mainspring.model.instant import Duration
from mainspring.ports.clock import Clock
from mainspring.ports.threads import Threads


class AppOptions(TypedDict, total=False):
    """Options that a program may give beside its configuration, named and meant as those of `Mainspring`."""

    #: URL of a broker that hastens the start of work; None: $MAINSPRING_BROKER, else none.
    broker: str | None
    #: Name of the program. Instances of one name share a leader and declared schedules.
    name: str
    #: Version of the program's code. If two live versions declare a schedule differently, the newer one wins.
    version: str
    #: Separates programs on one store: schedules, runs, events and keys of another namespace do not exist here.
    namespace: str
    #: Zone of schedules that name none.
    tz: str
    #: Queues whose runs this instance executes.
    queues: Iterable[str]
    #: The most runs that this instance executes at once.
    concurrency: int
    #: The runs of a process that crashed may be executed by another one after this time.
    lease_ttl: Duration
    #: Time between two renewals of the leases of this instance; None: a third of `lease_ttl`.
    heartbeat: Duration | None
    #: The longest time between two queries for due work.
    poll_interval: Duration
    #: Time that running work has to end when the program stops; then it is handed back.
    shutdown_timeout: Duration
    #: How long ended runs stay; None: 30 days, or one day on Redis.
    history: Duration | None
    #: The most bytes of the arguments of a run, as JSON.
    payload_limit: int
    #: The most bytes of the logs of all runs; None: 1 GiB, or 64 MiB on Redis and in memory; 0: no logs.
    logs_limit: int | None
    #: Texts by name that describe the instance in `mainspring workers`.
    labels: Mapping[str, str] | None
    #: Any value: handlers get it as `ctx.deps`.
    deps: Any
    #: Limits of the calls of HTTP agents; None: the defaults, and no calls unless the program declares an agent.
    agents: AgentSettings | None
    #: What a start does with a declared schedule that a person edited: "keep" the edit, or restore the "code".
    on_drift: Literal["keep", "code"]
    #: Clock of this machine; None: the real one. For tests.
    clock: Clock | None
    #: Source of random numbers; None: a new one. For tests.
    rng: random.Random | None
    #: Factory of the threads of the engine; None: the operating system's. For tests.
    threads: Threads | None
