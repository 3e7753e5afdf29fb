"""Plan items: what planning makes of the fires that are due. Lists of items are in order of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct

from mainspring.model.instant import Ms


class Fire(Struct, frozen=True, gc=False):
    """A plan item: the fire at `at`. It becomes a run, or a skipped run if the overlap policy refuses it."""

    at: Ms
    #: True if the fire was missed, and its run makes up for it.
    catch_up: bool = False
    #: True if each of several missed fires gets a run. The overlap policy does not refuse such a fire.
    replay: bool = False
    #: Number of further missed fires that the run makes up for.
    coalesced: int = 0


class Elision(Struct, frozen=True, gc=False):
    """A plan item: a span of `count` fires in (after, through] that will not run, with the reason."""

    after: Ms
    through: Ms
    count: int
    reason: str


class CountedAgain(Struct, frozen=True, gc=False):
    """A plan item: the fire at `at`, which has had a run since before a rewind. That run counts again."""

    at: Ms


#: What becomes of one fire, or of the fires of a span.
Item = Fire | Elision | CountedAgain


def end_of(item: Item) -> Ms:
    """Return the last instant that a plan item covers."""
    return item.through if isinstance(item, Elision) else item.at


def cut_to_limit(items: list[Item], limit: int) -> tuple[list[Item], bool]:
    """Return the items that precede fire number `limit` + 1, and True if these are all items."""
    fires = [i for i, item in enumerate(items) if isinstance(item, Fire)]
    return (items, True) if len(fires) <= limit else (items[: fires[limit]], False)


def keep_known_runs(items: list[Item], known: Sequence[Ms], count: Callable[[str, Ms, Ms], int]) -> list[Item]:
    """Return the items, changed so that a fire that has a run already counts again, and gets no further run or span.

    `known`: times of fires that have a run, in order; some may be no fires of the present definition. `count` returns
    how many fires a span of a reason has in (after, through]. A span around such a fire becomes one on each side of it.
    """
    if not known:
        return items
    found: list[Item] = []
    for item in items:
        if isinstance(item, Fire):
            found.append(CountedAgain(item.at) if item.at in known else item)
        elif isinstance(item, Elision) and item.reason != "dst":
            found += _split_span(item, known, count)
        else:
            found.append(item)
    return found


def _split_span(span: Elision, known: Sequence[Ms], count: Callable[[str, Ms, Ms], int]) -> list[Item]:
    """Return the parts of a span between the fires in `known` that it covers, and these fires."""
    parts: list[Item] = []
    after = span.after
    for at in known[bisect_right(known, span.after) : bisect_right(known, span.through)]:
        if not count("missed", at - 1, at):
            continue  # a fire of an earlier definition
        if before := count(span.reason, after, at - 1):
            parts.append(Elision(after, at - 1, before, span.reason))
        parts.append(CountedAgain(at))
        after = at
    if not parts:
        return [span]
    if left := count(span.reason, after, span.through):
        parts.append(Elision(after, span.through, left, span.reason))
    return parts
