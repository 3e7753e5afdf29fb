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

    broker: str | None
    name: str
    version: str
    namespace: str
    tz: str
    queues: Iterable[str]
    concurrency: int
    lease_ttl: Duration
    heartbeat: Duration | None
    poll_interval: Duration
    shutdown_timeout: Duration
    history: Duration | None
    payload_limit: int
    logs_limit: int | None
    labels: Mapping[str, str] | None
    deps: Any
    agents: AgentSettings | None
    on_drift: Literal["keep", "code"]
    clock: Clock | None
    rng: random.Random | None
    threads: Threads | None
