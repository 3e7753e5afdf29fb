"""The hint inbox: the runs that the broker's messages name, for one worker to claim. It answers the messages, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence

from mainspring.ports.broker import Message
from mainspring.ports.store import Claimed

#: The most runs that one claim asks for by name.
MAX_NAMED_CLAIM = 200
#: Remember at least this many of the runs that ended last. A message that names one of them comes late, and is answered
#: without asking the store.
MIN_REMEMBERED_RUNS = 5_000


class HintInbox:
    """The unanswered messages for one worker, each of which names a run. Thread: engine loop.

    To answer a message is to acknowledge it to the broker. That happens when the outcome of its run is stored, or as
    soon as it is clear that this worker cannot claim the run.
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
        """Make an inbox for the worker that can run `tasks`, with a poll interval of `poll` seconds.

        `tasks`: names of tasks. `running`: ids of the runs that the worker holds. `unstored`: ids of the runs whose
        outcome is not stored yet. `done(message)` acknowledges a message. `room()` is called when there may be room for
        more runs that wait here to be claimed.
        """
        self.tasks = tasks
        self._running = running
        self._unstored = unstored
        self._poll = poll
        self._done = done
        self._room = room
        #: Runs still to be claimed, by id: the message that named the run, and when it came, in monotonic seconds.
        self.named: dict[str, tuple[Message, float]] = {}
        #: The messages of runs claimed here whose outcome is not stored yet, by run id.
        self._held: dict[str, Message] = {}
        #: Ids of runs that ended here before their message came. When the set is full, it becomes `_ended_before`.
        self._ended: set[str] = set()
        self._ended_before: set[str] = set()
        self._polled_at = float("-inf")
        #: Number of runs that the worker's own claims brought, by name or by a poll. Shared claims do not count.
        self.claimed = 0

    def add(self, run_id: str, message: Message, now: float) -> bool:
        """Take a message that names the run `run_id`. Return True if the worker must still claim that run, else False.

        If the run ended here, answer the message now. If the worker holds the run, answer a repeated delivery now,
        because the lease protects the run; answer a first delivery when the outcome of the run is stored. Of two
        messages that name one run, answer the older now. `now`: monotonic seconds.
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
        """Return True if the worker has claimed the run and its outcome is not stored yet."""
        return run_id in self._running or run_id in self._unstored

    def _replace(self, where: dict[str, Message], run_id: str, message: Message) -> None:
        """Keep a run's message in `where`. If another message was kept there for the run, answer that message."""
        before = where.get(run_id)
        if before is not None and before.id != message.id:
            self._done(before)
        where[run_id] = message

    def names_to_claim(self, now: float) -> list[str]:
        """Return the ids of the runs to claim by name; if the list is empty, the worker claims any due runs instead.

        The list is empty if no named run is left to claim. It is also empty once per poll interval, so that runs
        without a message are found. `now`: monotonic seconds.
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
        """Update the inbox after a claim that asked for the runs `asked` by name and had room for `wanted` runs.

        Keep the messages of the runs it brought. Acknowledge those of the other asked runs, which cannot be claimed,
        unless the claim was cut short (by `wanted`, or by a run that crashed before, which comes alone). Return True if
        named runs are left.
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
        """Answer the message of a run whose outcome is stored now. `ended`: True if the run has ended with it.

        If it ended and its message has not come yet, `add` will answer that message at once. A run that did not end can
        be named again by a later message.
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
        """Answer the messages that came at `before` or earlier and whose runs are not claimed. Return their number.

        `before`: monotonic seconds. The runs are not lost: every worker has polled the store since.
        """
        old = list(itertools.takewhile(lambda run_id: self.named[run_id][1] <= before, self.named))
        for run_id in old:
            self._done(self.named.pop(run_id)[0])
        return len(old)

    def remove_all(self) -> list[Message]:
        """Forget the runs that are still to be claimed. Return their messages, to be passed to other instances."""
        found = [message for message, _ in self.named.values()]
        self.named.clear()
        return found
