"""Requests to stop the engine, by signals or calls: the first lets running runs end, the second hands them back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from mainspring.model.plural import plural

#: The most task names in the line that says what a stop waits for.
MAX_NAMES_IN_WAIT = 5


def describe_wait(tasks: Sequence[str], timeout: float, *, by_ctrl_c: bool) -> str:
    """Return the line that says what a stop waits for: runs of these `tasks`, for at most `timeout` seconds.

    `by_ctrl_c`: a second Ctrl-C ends the wait.
    """
    counts = Counter(tasks)
    names = [name if count == 1 else f"{name} × {count}" for name, count in counts.most_common(MAX_NAMES_IN_WAIT)]
    more = f" and {plural(len(counts) - len(names), 'more task')}" if len(counts) > len(names) else ""
    runs = plural(len(tasks), "run")
    hint = "; press Ctrl-C again to end now" if by_ctrl_c else ""
    return f"stopping: waits up to {timeout:g} s for {runs} ({', '.join(names)}{more}){hint}"


class Stopper:
    """Counts requests to stop, and lets tasks wait for the first. It belongs to the event loop on which it was made."""

    def __init__(self, *, by_ctrl_c: bool = False) -> None:
        """`by_ctrl_c`: Ctrl-C requests a stop, and a second Ctrl-C the second request."""
        self.by_ctrl_c = by_ctrl_c
        self._loop = asyncio.get_running_loop()
        self._first = asyncio.Event()
        self._second: Callable[[], object] | None = None
        self._in_signal_handler: Callable[[], object] | None = None
        #: Number of requests so far.
        self.requests = 0

    def request(self, *, again: bool = True) -> None:
        """Request a stop. With `again` False, do nothing if a stop was requested before. Thread: any."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: the stop is over
            self._loop.call_soon_threadsafe(self._count if again else self._count_first)

    def _count_first(self) -> None:
        """Count a request if there was none before."""
        if self.requests == 0:
            self._count()

    def _count(self) -> None:
        """Count a request and end the waits. From the second request on, call the function of `on_second` each time."""
        self.requests += 1
        self._first.set()
        if self.requests >= 2 and self._second is not None:
            self._second()

    def on_second(self, call: Callable[[], object]) -> None:
        """Set the function that the second and each later request calls. If two were made already, call it now."""
        self._second = call
        if self.requests >= 2:
            call()

    def call_in_signal_handler(self, call: Callable[[], object]) -> None:
        """Set a function that each signal calls inside Python's signal handler; it must not block.

        Why: the event loop counts the signal as a request, and a task that blocks the loop may delay that.
        """
        self._in_signal_handler = call

    async def wait(self) -> None:
        """Return when the first request was made."""
        await self._first.wait()

    async def first_of(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` until it is done or a stop is requested, which cancels it. Raises what `work` raises."""
        done = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._first.wait())
        try:
            await asyncio.wait([done, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:  # also if the caller is cancelled
            rest = [task for task in (done, stop) if not task.done()]
            for task in rest:
                task.cancel()
            if rest:  # gathered: the await of one cancelled task would look like a cancellation of the caller
                await asyncio.gather(*rest, return_exceptions=True)
        if done.done() and not done.cancelled():
            done.result()

    @contextlib.contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Let each of these signals request a stop while the block runs. Outside the main thread, change nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in numbers:
            self._loop.add_signal_handler(number, self._count)
            # The loop learns of signals by a file descriptor, so that Python's own signal handler is free for ours.
            signal.signal(number, self._on_signal)
            signal.siginterrupt(number, False)
        try:
            yield
        finally:
            for number in numbers:
                self._loop.remove_signal_handler(number)

    def _on_signal(self, _number: int, _frame: object) -> None:
        """Call the function of `call_in_signal_handler`. Python's signal handler, so on the main thread."""
        if self._in_signal_handler is not None:
            self._in_signal_handler()
