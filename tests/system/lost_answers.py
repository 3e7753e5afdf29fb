"""Tests of a store behind a proxy that loses answers and refuses connections, for every database server.

A test module defines the fixtures `proxy`, `store` (a store that reaches its server through the proxy) and `ids`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import pytest

from mainspring.backends.remote import retries
from mainspring.model.errors import OutcomeUnknown, StoreUnavailable
from mainspring.model.run import State
from mainspring.ports.store import ClaimRequest, Events, Offer, Runs, Store
from mainspring.testing.contract.factories import Ids, enqueue_change, finish_change, make_run
from servers.proxy import Proxy

OFFER = Offer("w", ("default/default",), ("t",), 30_000)


class RecognisesWrite(Protocol):
    """Function that returns True for the bytes of a request that writes."""

    def __call__(self, data: bytes) -> bool: ...


class LostAnswers:
    """What callers see of a write whose answer is lost, or that could not be sent."""

    is_write: ClassVar[RecognisesWrite]

    async def test_outcomes_whose_answer_is_lost_are_stored_and_runs_claimed_with_them_are_strays(
        self, proxy: Proxy, store: Store, ids: Ids
    ) -> None:
        await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(2)])
        (first,) = (await store.claim(OFFER, 1)).claims
        proxy.lose_answer(self.is_write)
        applied = await store.apply([finish_change(ids, first.run)], claim_request=ClaimRequest(OFFER, 5))
        assert proxy.lost == 1
        assert applied.results[0].status == "repeated"
        assert (await store.find(Runs(id=first.run.id)))[0].state is State.SUCCEEDED
        claimed = [] if applied.claimed is None else applied.claimed.claims
        strays = (await store.renew("w", [(claim.run.id, claim.run.epoch) for claim in claimed], 30_000)).strays
        assert len(strays) + len(claimed) == 1
        events = await store.find(Events(run_id=first.run.id))
        assert [type(event).__name__ for event in events] == ["RunScheduled", "RunStarted", "RunSucceeded"]

    async def test_a_write_whose_answer_stays_lost_raises_outcome_unknown(
        self, proxy: Proxy, store: Store, ids: Ids, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retries, "RESEND_SECONDS", 0.2)
        change = enqueue_change(ids, make_run(ids))
        proxy.lose_answer(lambda data: self.is_write(data) and not setattr(proxy, "refusing", True))
        with pytest.raises(OutcomeUnknown, match="whether it was is not known"):
            await store.apply([change])
        proxy.refusing = False
        assert [result.status for result in (await store.apply([change])).results] == ["repeated"]

    async def test_a_write_that_was_never_sent_raises_store_unavailable(
        self, proxy: Proxy, store: Store, ids: Ids
    ) -> None:
        before = await store.find(Runs())
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await store.find(Runs())
        with pytest.raises(StoreUnavailable) as away:
            await store.apply([enqueue_change(ids, make_run(ids))])
        assert not isinstance(away.value, OutcomeUnknown)
        proxy.refusing = False
        assert await store.find(Runs()) == before
