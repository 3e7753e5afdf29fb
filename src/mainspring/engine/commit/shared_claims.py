"""Claims that share a commit with outcomes or new runs: one commit then does the work of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mainspring.model.change import Change
from mainspring.ports.store import Claimed, ClaimRequest


class Claimant(Protocol):
    """A worker that may claim runs in the commit that is about to be made."""

    def claim_request(self, changes: Sequence[Change]) -> ClaimRequest | None:
        """Return the claim to make in the commit of `changes`, or None to make none.

        For each claim that was returned, the batcher calls `claim_result` once.
        """
        ...

    def claim_result(self, claimed: Claimed | None) -> None:
        """Take the answer to the claim, with its runs; None: the claim was not made, or its result is unknown."""
        ...


class SharedClaims:
    """The workers whose claims may share a commit: one claim per commit; they take turns. Thread: engine loop.

    It is made before the batcher and before the workers, which would otherwise have to know each other.
    """

    def __init__(self) -> None:
        self._claimants: list[Claimant] = []

    def register(self, claimant: Claimant) -> None:
        """Ask this worker, too, before each commit."""
        self._claimants.append(claimant)

    def clear(self) -> None:
        """Make commits without claims from now on."""
        self._claimants.clear()

    def next_request(self, changes: Sequence[Change]) -> tuple[Claimant, ClaimRequest] | None:
        """Return a claim for the commit of `changes`, and the worker that receives its answer; None if none wants one.

        That worker is asked last from now on.
        """
        for claimant in self._claimants:
            request = claimant.claim_request(changes)
            if request is not None:
                self._claimants.remove(claimant)  # the last one served is the last one asked
                self._claimants.append(claimant)
                return claimant, request
        return None
