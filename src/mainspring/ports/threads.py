"""Threads come from here, so that a simulation can make them tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Threads(Protocol):
    """Starts a thread that never keeps the process alive."""

    def start(self, target: Callable[[], None], name: str) -> None: ...


class SystemThreads:
    """The machine's threads."""

    def start(self, target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()
