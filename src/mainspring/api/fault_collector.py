"""Collect the mistakes of a request, so that the answer names all of them at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from mainspring.api.problems import Fault, Refused, invalid_request, refusal_for_mistake
from mainspring.model.errors import InvalidInput, UnknownTask


class FaultCollector:
    """The mistakes found so far in a request. Each step of parsing it runs in a block of `collecting`.

    `faults`: mistakes that were found before.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._refusals = [invalid_request([fault]) for fault in faults]

    @property
    def wrong(self) -> frozenset[str]:
        """The JSON names of the fields of the body that have a mistake."""
        pointers = (fault.pointer for refusal in self._refusals for fault in refusal.errors)
        return frozenset(pointer.split("/")[1] for pointer in pointers if pointer and "/" in pointer)

    @contextlib.contextmanager
    def collecting(self, *, unless_wrong: Iterable[str] = ()) -> Iterator[None]:
        """Keep a mistake that the block raises. Drop it if one of the fields `unless_wrong` has a mistake already.

        Why: if `intervalMs` has a wrong type, the schedule seems to have no trigger, which is no second mistake.
        """
        try:
            yield
        except (InvalidInput, UnknownTask, Refused) as error:
            if self.wrong.isdisjoint(unless_wrong):
                self._refusals.append(refusal_for_mistake(error))

    def raise_if_any(self) -> None:
        """Raise Refused with all mistakes, if there are any. A single one keeps its own status and kind."""
        if not self._refusals:
            return
        if len(self._refusals) == 1:
            raise self._refusals[0]
        faults = [fault for refusal in self._refusals for fault in refusal.errors]
        first = self._refusals[0]
        same = all((one.status, one.kind) == (first.status, first.kind) for one in self._refusals)
        raise _joined(first, faults) if same else invalid_request(faults)


def _joined(first: Refused, faults: list[Fault]) -> Refused:
    joined = invalid_request(faults)
    return Refused(first.status, first.kind, joined.detail, faults)
