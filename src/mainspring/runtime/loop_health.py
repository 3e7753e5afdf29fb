"""Health of the loops of a running instance: which of them cannot do their work, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mainspring.engine.loop import Loop
from mainspring.model.health import Health

#: A store that has not answered a call for this many seconds is reported.
SILENT_STORE_SECONDS = 2.0


def judge_loops(
    loops: Iterable[Loop],
    one_call_each: Iterable[Loop],
    others: Mapping[str, str | None],
    warnings: tuple[str, ...],
    now: float,
) -> Health:
    """Return the health of an instance whose engine runs these `loops`, with `warnings`.

    A loop fails if its last `run_once` raised an error. The loops in `one_call_each`, whose work is a single call of
    the store, also fail if the store has not answered for `SILENT_STORE_SECONDS`. `others`: name of another part, such
    as the broker → what is wrong with it, None if nothing is; reported like a loop. `now`: the event loop's time.
    """
    failing = {loop.name: loop.trouble for loop in loops if loop.trouble is not None}
    for loop in one_call_each:
        silence = 0.0 if (since := loop.since) is None else now - since
        if silence > SILENT_STORE_SECONDS:
            failing.setdefault(loop.name, f"the store has not answered for {silence:.0f} s")
    failing |= {name: trouble for name, trouble in others.items() if trouble is not None}
    return Health("degraded" if failing else "ok", failing, warnings)
