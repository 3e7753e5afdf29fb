"""The hint inbox: runs that the broker's messages named, for one worker to claim, and when each message is answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence

from mainspring.ports.broker import Message
from mainspring.ports.store import Claimed

#: The most named runs in one claim.
MAX_NAMED_CLAIM = 200
#: The latest ended runs that are remembered, at least: their messages come late, and need no question to the store.
MIN_REMEMBERED_RUNS = 5_000


class HintInbox:
    """Messages for one worker, each of which names a run.

    A message is answered (acknowledged) when the outcome of its run is stored, or if the run cannot be claimed. Thread:
    engine loop.
    """

    def __init__(
        self,
        tasks: Container[str],
        running: Container[str],
        unstored: Container[str],
        poll: float,
        done: Callable[[Message], None],
        room: Callable[[], None],
    ) -> None:
        """`running`, `unstored`: ids of runs that the worker holds, and of runs whose outcome is not stored yet.

        `poll`: the poll interval in seconds. `done(message)` acknowledges a message; `room()` is called when the number
        of named runs may have fallen.
        """
        #: Tasks that the worker can run.
        self.tasks = tasks
        self._running = running
        self._unstored = unstored
        self._poll = poll
        self._done = done
        self._room = room
        #: By run: its message and when that came, in monotonic seconds, for runs that are not known to be claimed.
        self.named: dict[str, tuple[Message, float]] = {}
        #: By run: its message, for runs claimed here whose outcome is not stored yet.
        self._held: dict[str, Message] = {}
        #: Runs that ended here before their message came. When the set is full, it becomes `_ended_before`.
        self._ended: set[str] = set()
        self._ended_before: set[str] = set()
        self._polled_at = float("-inf")
        #: Number of runs claimed by name.
        self.claimed = 0

    def add(self, run_id: str, message: Message, now: float) -> bool:
        """Take a message that names a run. Return True if the run has to be claimed.

        Else the message is answered, or kept until the outcome of its run is stored. `now`: in monotonic seconds.
        """
        if run_id in self._ended or run_id in self._ended_before:
            self._done(message)
        elif self._holds(run_id):
            if message.deliveries > 1:  # a long run: its message came again, and its lease protects it by now
                self._done(message)
            else:
                self._replace(self._held, run_id, message)
        else:
            before = self.named.get(run_id)
            if before is not None and before[0].id != message.id:
                self._done(before[0])
            self.named[run_id] = (message, now)
            return True
        return False

    def _holds(self, run_id: str) -> bool:
        return run_id in self._running or run_id in self._unstored

    def _replace(self, where: dict[str, Message], run_id: str, message: Message) -> None:
        """Keep a message for a run in `where`, and answer the one that was kept for the run before."""
        before = where.get(run_id)
        if before is not None and before.id != message.id:
            self._done(before)
        where[run_id] = message

    def names_to_claim(self, now: float) -> list[str]:
        """Return the ids of runs to claim by name. If it is empty, the worker makes an ordinary claim, which finds all.

        An ordinary claim is due if no run is named, and once per poll interval. `now`: in monotonic seconds.
        """
        if not self.named or now - self._polled_at >= self._poll:
            self._polled_at = now
            return []
        ids: list[str] = []
        claimed: list[str] = []
        for run_id in self.named:
            if self._holds(run_id):
                claimed.append(run_id)
            else:
                ids.append(run_id)
                if len(ids) >= MAX_NAMED_CLAIM:
                    break
        for run_id in claimed:
            self._replace(self._held, run_id, self.named.pop(run_id)[0])
        self._room()
        return ids

    def claim_answered(self, asked: Sequence[str], claimed: Claimed, wanted: int) -> bool:
        """Note which of the `asked` runs a claim for `wanted` runs brought; answer the messages of those not claimable.

        A run is not claimable if the claim did not bring it although it brought fewer than `wanted` runs, and no
        crashed one, which comes alone. Return True if there are more runs to claim by name.
        """
        got = {claim.run.id for claim in claimed.claims}
        self.claimed += len(got)
        is_sole_crashed = len(got) == 1 and claimed.claims[0].run.crashes > 0
        is_complete = len(got) < wanted and not is_sole_crashed
        for run_id in asked:
            if run_id in got:
                found = self.named.pop(run_id, None)
                if found is not None:
                    self._replace(self._held, run_id, found[0])
            elif is_complete and (found := self.named.pop(run_id, None)) is not None:
                self._done(found[0])  # it ended, is parked, has another owner or another lane
        self._room()
        return bool(self.named)

    def stored(self, run_id: str, *, ended: bool) -> None:
        """Answer the message of a run whose outcome is stored.

        If the run ended before its message came, that message is answered when it comes. If the run did not end, a
        later message names it anew.
        """
        message = self._held.pop(run_id, None)
        if message is not None:
            self._done(message)
        if not ended:
            self._ended.discard(run_id)
            self._ended_before.discard(run_id)
            return
        found = self.named.pop(run_id, None)
        if found is not None:
            self._done(found[0])
            self._room()
        elif message is None:
            self._ended.add(run_id)
            if len(self._ended) >= MIN_REMEMBERED_RUNS:
                self._ended_before, self._ended = self._ended, set()

    def answer_older(self, before: float) -> int:
        """Answer messages of unclaimed runs that came until `before`, in monotonic seconds. Return their number.

        Their runs are not lost: every worker has polled the store since.
        """
        old = list(itertools.takewhile(lambda run_id: self.named[run_id][1] <= before, self.named))
        for run_id in old:
            self._done(self.named.pop(run_id)[0])
        return len(old)

    def remove_all(self) -> list[Message]:
        """Forget the named runs, and return their messages for other instances."""
        found = [message for message, _ in self.named.values()]
        self.named.clear()
        return found
