"""The runs that messages named, for one worker to claim; and what is to be said about each message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence

from mainspring.ports.broker import Message
from mainspring.ports.store import Claimed

#: So many named runs are asked for at once.
ASK = 200
#: So many runs that ended here are remembered, at least: their messages come late, and need no question.
REMEMBER = 5_000


class Inbox:
    """A message is done with when the outcome of its run is stored, or when there is nothing to claim."""

    def __init__(
        self,
        tasks: Container[str],
        running: Container[str],
        unstored: Container[str],
        poll: float,
        done: Callable[[Message], None],
        room: Callable[[], None],
    ) -> None:
        #: What its worker can run.
        self.tasks = tasks
        self._running = running
        self._unstored = unstored
        self._poll = poll
        self._done = done
        self._room = room
        #: By run: named, and as far as we know not claimed; with the time it came.
        self.named: dict[str, tuple[Message, float]] = {}
        #: By run: claimed here, its outcome not stored yet.
        self._held: dict[str, Message] = {}
        self._ended: set[str] = set()
        self._ended_before: set[str] = set()
        self._looked = float("-inf")
        self.claimed = 0

    def add(self, run_id: str, message: Message, now: float) -> bool:
        """A message names a run; true when it has to be asked for."""
        if run_id in self._ended or run_id in self._ended_before:
            self._done(message)
        elif self._holds(run_id):
            if message.deliveries > 1:  # it was under way for so long that it came again: its lease says enough
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
        before = where.get(run_id)
        if before is not None and before.id != message.id:
            self._done(before)
        where[run_id] = message

    def ask(self, now: float) -> list[str]:
        """Runs to claim by name; none when it is time for the ordinary claim, which finds what was lost."""
        if not self.named or now - self._looked >= self._poll:
            self._looked = now
            return []
        ids: list[str] = []
        taken: list[str] = []
        for run_id in self.named:
            if self._holds(run_id):
                taken.append(run_id)
            else:
                ids.append(run_id)
                if len(ids) >= ASK:
                    break
        for run_id in taken:
            self._replace(self._held, run_id, self.named.pop(run_id)[0])
        self._room()
        return ids

    def answered(self, asked: Sequence[str], claimed: Claimed, wanted: int) -> bool:
        """What came of a claim by name; true when there are more names to ask for."""
        got = {claim.run.id for claim in claimed.claims}
        self.claimed += len(got)
        alone = len(got) == 1 and claimed.claims[0].run.crashes > 0
        sure = len(got) < wanted and not alone
        for run_id in asked:
            if run_id in got:
                found = self.named.pop(run_id, None)
                if found is not None:
                    self._replace(self._held, run_id, found[0])
            elif sure and (found := self.named.pop(run_id, None)) is not None:
                self._done(found[0])  # ended, another's, parked, or not ours to run: nothing to claim
        self._room()
        return bool(self.named)

    def stored(self, run_id: str, *, ended: bool) -> None:
        """The outcome of a run is stored; if that is not its end, its next message counts."""
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
            if len(self._ended) >= REMEMBER:
                self._ended_before, self._ended = self._ended, set()

    def forget(self, before: float) -> int:
        """Be done with what found no slot here for so long: everybody has looked into the store since."""
        old = list(itertools.takewhile(lambda run_id: self.named[run_id][1] <= before, self.named))
        for run_id in old:
            self._done(self.named.pop(run_id)[0])
        return len(old)

    def give_up(self) -> list[Message]:
        """Messages that others should get."""
        found = [message for message, _ in self.named.values()]
        self.named.clear()
        return found
