"""Notifications of remote stores: the debounce, and the changes that need a notification."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.backends.remote.notifications import NotificationDebounce, needs_notification
from mainspring.model.change import Change
from mainspring.model.events import InstanceJoined
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run


class Sender:
    def __init__(self) -> None:
        self.sent = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> None:
        await self.gate.wait()
        self.sent += 1


@pytest.fixture
def sender() -> Sender:
    return Sender()


async def test_requests_within_the_gap_share_a_notification(sender: Sender) -> None:
    debounce = NotificationDebounce(sender)
    debounce.request()
    await asyncio.sleep(0.005)
    assert sender.sent == 1, "the first is sent at once"
    for _ in range(10):
        debounce.request()
    await asyncio.sleep(0.1)
    assert sender.sent == 2
    debounce.request()
    await asyncio.sleep(0.005)
    assert sender.sent == 3


async def test_closing_with_a_grace_sends_requested_notifications(sender: Sender) -> None:
    debounce = NotificationDebounce(sender)
    debounce.request()
    await asyncio.sleep(0.001)
    debounce.request()
    await debounce.close(grace_seconds=5)
    assert sender.sent == 2


async def test_closing_without_a_grace_drops_requests_and_a_later_request_is_sent(sender: Sender) -> None:
    debounce = NotificationDebounce(sender)
    debounce.request()
    await debounce.close(grace_seconds=0)
    assert sender.sent == 0
    debounce.request()
    await asyncio.sleep(0.005)
    assert sender.sent == 1
    await debounce.close(grace_seconds=0)


async def test_a_grace_ends_although_a_notification_hangs(sender: Sender) -> None:
    sender.gate.clear()
    debounce = NotificationDebounce(sender)
    debounce.request()
    async with asyncio.timeout(5):
        await debounce.close(grace_seconds=0.01)
    assert sender.sent == 0


def test_a_new_run_needs_a_notification_and_a_note_does_not() -> None:
    ids = Ids()
    assert needs_notification(enqueue_change(ids, make_run(ids)))
    assert not needs_notification(Change(id=ids.change(), events=(InstanceJoined(instance="i"),)))
