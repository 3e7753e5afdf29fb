"""Shared claims: a worker's claim is made in the commit of outcomes or new runs, so one commit does the work of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mainspring.model.change import Change
from mainspring.ports.store import Claimed, ClaimRequest


class Claimant(Protocol):
    """A worker that can claim runs in a commit of the batcher."""

    def claim_request(self, changes: Sequence[Change]) -> ClaimRequest | None:
        """Return the claim to make in the commit of `changes`, or None to make no claim.

        The batcher calls this before a commit. For each claim returned, it calls `claim_result` once.
        """
        ...

    def claim_result(self, claimed: Claimed | None) -> None:
        """Take the answer to the claim, with its runs; None: the claim was not made, or its result is unknown."""
        ...


class SharedClaims:
    """The workers whose claims may share a commit. A commit has at most one claim, so the workers take turns.

    The batcher knows this object instead of the workers, which are made later. Thread: engine loop.
    """

    def __init__(self) -> None:
        self._claimants: list[Claimant] = []

    def register(self, claimant: Claimant) -> None:
        """From now on, ask this worker, too, for a claim before a commit."""
        self._claimants.append(claimant)

    def clear(self) -> None:
        """Forget all workers: from now on commits are made without claims."""
        self._claimants.clear()

    def next_request(self, changes: Sequence[Change]) -> tuple[Claimant, ClaimRequest] | None:
        """Return a claim for the commit of `changes`, with the worker that wants it and will receive its answer.

        The worker is asked last from now on. Return None if no worker wants a claim.
        """
        for claimant in self._claimants:
            request = claimant.claim_request(changes)
            if request is not None:
                self._claimants.remove(claimant)  # it is asked last from now on
                self._claimants.append(claimant)
                return claimant, request
        return None
