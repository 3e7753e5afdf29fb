"""Never two that believe to lead, or to hold a lock, whatever happens to them; and mistakes are found."""

from __future__ import annotations

import os
from typing import Any

import pytest
from elections import TTL, TwoBelieve, hold_elections

from mainspring.engine import term
from mainspring.engine.term import Said, Term
from mainspring.model.instant import Ms
from mainspring.ports.store import Lease
from mainspring.stores.memory import MemoryStore

CHUNKS, SIZE = 4, 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_never_two_that_both_trust_their_term(chunk: int) -> None:
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
    """Trust counted from the answer instead of from before the request."""
    take, renew = Term.take, Term.renew

    async def taken(self: Term) -> bool:
        got = await take(self)
        self._trust = self._clock.boot() + int(self.ttl * 0.9)
        return got

    async def renewed(self: Term, *, ttl: Ms | None = None, said: Said | None = None) -> bool:
        kept = await renew(self, ttl=ttl, said=said)
        self._trust = self._clock.boot() + int(self.ttl * 0.9)
        return kept

    monkeypatch.setattr(Term, "take", taken)
    monkeypatch.setattr(Term, "renew", renewed)


def _has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is held until somebody says otherwise."""
    monkeypatch.setattr(Term, "trusted", property(lambda self: self.token is not None))


def _leaves_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust to the last millisecond, by a clock that runs slow."""
    monkeypatch.setattr(term, "TRUST", 1.0)


class _RenewsAnything(MemoryStore):
    """A renewal that does not ask whose term it is."""

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
    """A released row is removed, and its epoch with it."""

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        ended = await super().release(name, owner, epoch, now=now)
        if ended:
            del self._leases[name]
        return ended


@pytest.mark.parametrize("mistake", [_believes_the_answer, _has_no_clock, _leaves_no_margin])
def test_a_mistake_in_the_trust_is_found(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(TwoBelieve):
        for seed in range(150):
            hold_elections(seed)


@pytest.mark.parametrize("store", [_RenewsAnything, _ForgetsTerms])
def test_a_mistake_in_the_store_is_found(store: Any) -> None:
    with pytest.raises(AssertionError, match=r"believe to|won twice|do not grow"):
        for seed in range(50):
            hold_elections(seed, store)


def test_a_term_is_shorter_for_its_holder_than_for_the_others() -> None:
    """What the margin is for: by a clock that runs ten per cent slow a holder still stops in time."""
    assert int(TTL * term.TRUST) <= TTL * 0.9
