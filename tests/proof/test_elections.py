"""Simulated elections: at most one process trusts its term as leader or lock holder, and planted mistakes are found."""

from __future__ import annotations

import os
from typing import Any

import pytest

from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.locks import lease_term as term
from mainspring.engine.locks.lease_term import LeaseTerm, TermData
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from tests.proof.elections import ELECTION_TTL_MS, TwoTrustOneLease, hold_elections

CHUNKS, SIZE = 4, 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_at_most_one_process_trusts_its_term(chunk: int) -> None:
    locks = terms = 0
    for seed in range(chunk * SIZE, (chunk + 1) * SIZE):
        world = hold_elections(seed)
        locks += len(world.tokens)
        terms += len(world.notes)
    assert locks > 10 * SIZE
    assert terms > 5 * SIZE


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
def test_many_elections() -> None:
    for seed in range(10_000, 10_000 + int(os.environ.get("MAINSPRING_WORLDS", "2"))):
        hold_elections(seed)


def test_a_world_replays_exactly() -> None:
    first, again = hold_elections(5), hold_elections(5)
    assert (first.tokens, first.notes, first.loop.steps) == (again.tokens, again.notes, again.loop.steps)


def _believes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: the trust in a lease is counted from the answer, not from before the request."""
    acquire, renew = LeaseTerm.acquire, LeaseTerm.renew

    async def acquired(self: LeaseTerm) -> bool:
        got = await acquire(self)
        self._trusted_until = self._clock.boot() + int(self.ttl * 0.9)
        return got

    async def renewed(self: LeaseTerm, *, ttl: Ms | None = None, data: TermData | None = None) -> bool:
        kept = await renew(self, ttl=ttl, data=data)
        self._trusted_until = self._clock.boot() + int(self.ttl * 0.9)
        return kept

    monkeypatch.setattr(LeaseTerm, "acquire", acquired)
    monkeypatch.setattr(LeaseTerm, "renew", renewed)


def _has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: a lock is trusted until its lease is reported as lost."""
    monkeypatch.setattr(LeaseTerm, "trusted", property(lambda self: self.token is not None))


def _leaves_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: a lease is trusted to its last millisecond, although the clock may run slow."""
    monkeypatch.setattr(term, "LEASE_TRUST_RATIO", 1.0)


class _RenewsAnything(MemoryStore):
    """Mistake: a renewal does not compare owner and epoch."""

    async def lease(
        self,
        name: str,
        owner: str,
        ttl: Ms,
        *,
        epoch: int | None = None,
        data: str | None = None,
        now: Ms | None = None,
    ) -> Lease | None:
        old = self._leases.get(name)
        if epoch is not None and old is not None:
            owner, epoch = old.owner, old.epoch
        return await super().lease(name, owner, ttl, epoch=epoch, data=data, now=now)


class _ForgetsTerms(MemoryStore):
    """Mistake: a release removes the row and with it the epoch."""

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        ended = await super().release(name, owner, epoch, now=now)
        if ended:
            del self._leases[name]
        return ended


@pytest.mark.parametrize("mistake", [_believes_the_answer, _has_no_clock, _leaves_no_margin])
def test_a_mistake_in_the_trust_is_found(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(TwoTrustOneLease):
        for seed in range(150):
            hold_elections(seed)


@pytest.mark.parametrize("store", [_RenewsAnything, _ForgetsTerms])
def test_a_mistake_in_the_store_is_found(store: Any) -> None:
    with pytest.raises(AssertionError, match=r"believe to|won twice|do not grow"):
        for seed in range(50):
            hold_elections(seed, store)


def test_a_term_is_shorter_for_its_owner_than_for_other_processes() -> None:
    """With this margin, a holder whose clock runs ten per cent slow still stops in time."""
    assert int(ELECTION_TTL_MS * term.LEASE_TRUST_RATIO) <= ELECTION_TTL_MS * 0.9
