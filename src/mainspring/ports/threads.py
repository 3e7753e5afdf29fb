"""The thread port: the only way to start a thread. Why: a simulation runs the thread's code as a task instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Threads(Protocol):
    """Starts daemon threads, which do not keep the process alive."""

    def start(self, target: Callable[[], None], name: str) -> None:
        """Call `target` in a new thread called `name`. Raises: RuntimeError if no thread can be started."""
        ...


class SystemThreads:
    """Threads of the operating system."""

    def start(self, target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()
