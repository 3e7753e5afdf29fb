"""Results: what is stored of the value that a task's function returned."""

from __future__ import annotations

import inspect
import logging
import reprlib
from typing import Any

import msgspec

from mainspring.app.signature import encode_json
from mainspring.model.errors import InvalidInput, PayloadNotSerialisable, PayloadTooLarge
from mainspring.model.ids import storable_text
from mainspring.model.settings import MAX_PAYLOAD_BYTES

log = logging.getLogger("mainspring.run")

#: The most characters of a `repr` that are stored in place of a result.
MAX_REPR_CHARS = 1_024

_short_repr = reprlib.Repr()
_short_repr.maxother = _short_repr.maxstring = _short_repr.maxlong = MAX_REPR_CHARS


class ResultEncoder:
    """Encodes the results of one task. A result that cannot be stored is replaced by its `repr`, with a warning.

    The warning is logged once for each type of a result, by each process. Thread: any.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._warned: set[type[Any]] = set()

    def __call__(self, value: Any) -> str | None:
        """Return a function's value as JSON text.

        A value that JSON cannot hold, or of more than 1 MiB, becomes `{"$repr": …, "$type": …}`: the work is done, so
        the run succeeds. Raises: PayloadNotSerialisable for a coroutine, whose work is not done.
        """
        if inspect.iscoroutine(value):
            value.close()
            raise PayloadNotSerialisable(
                "result",
                f"is the coroutine {value.__qualname__}, which was never awaited",
                "Write an async def and await it there",
            )
        try:
            data = encode_json(value, "result")
            if len(data) <= MAX_PAYLOAD_BYTES:
                return data.decode()
            problem: InvalidInput = PayloadTooLarge(
                "result",
                f"{len(data)} bytes are more than the limit of {MAX_PAYLOAD_BYTES}",
                "Store the data elsewhere and return its key",
            )
        except PayloadNotSerialisable as error:
            problem = error
        if type(value) not in self._warned:
            self._warned.add(type(value))
            fix = "Iterate it in the function" if inspect.isgenerator(value) else problem.fix
            text = storable_text(f"{problem.field}: {problem.problem}. {fix}")
            log.warning("task %s: only the repr is kept of its %s", self._task, text)
        kind = type(value)
        flagged = {"$repr": storable_text(_repr_of(value)), "$type": f"{kind.__module__}.{kind.__qualname__}"}
        return msgspec.json.encode(flagged).decode()


def _repr_of(value: Any) -> str:
    """Return at most `MAX_REPR_CHARS` characters of the `repr` of a value. Large containers are shortened first."""
    try:
        text = _short_repr.repr(value)
    except Exception:  # the `__repr__` of a part of it fails
        text = f"<{type(value).__name__} object>"
    return text if len(text) <= MAX_REPR_CHARS else text[: MAX_REPR_CHARS - 1] + "…"
