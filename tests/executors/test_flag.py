"""Flags: the request to stop an attempt, which several threads may wait for."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from mainspring.ports import executor
from mainspring.ports.executor import Flag


class SignallingLock:
    """A lock that sets `entered_by_second` when the thread "second" is about to acquire it."""

    def __init__(self, entered_by_second: threading.Event) -> None:
        self._lock = threading.Lock()
        self._entered_by_second = entered_by_second

    def __enter__(self) -> None:
        if threading.current_thread().name == "second":
            self._entered_by_second.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_set_wakes_every_thread_although_two_entered_the_first_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Flag()
    answers: dict[str, bool] = {}
    made: list[threading.Event] = []
    is_second_inside = threading.Event()
    waiting = threading.Semaphore(0)

    def wait() -> None:
        answers[threading.current_thread().name] = flag.wait(5.0)

    first, second = (threading.Thread(target=wait, name=name, daemon=True) for name in ("first", "second"))

    class ObservedEvent(threading.Event):
        """An event whose making in the thread "first" lasts until the thread "second" is in the first `wait`, too."""

        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            if threading.current_thread() is first:
                second.start()
                is_second_inside.wait(10)
            else:
                is_second_inside.set()

        def wait(self, timeout: float | None = None) -> bool:
            if timeout == 5.0:
                waiting.release()
            return super().wait(timeout)

    monkeypatch.setattr(executor, "_making_event", SignallingLock(is_second_inside), raising=False)
    monkeypatch.setattr(executor, "threading", SimpleNamespace(Event=ObservedEvent))
    first.start()
    assert waiting.acquire(timeout=10)
    assert waiting.acquire(timeout=10)
    flag.set()
    first.join(10)
    second.join(10)
    assert answers == {"first": True, "second": True}
    assert len(made) == 1
