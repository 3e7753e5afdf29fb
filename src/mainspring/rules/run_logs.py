"""Limits of run logs: which lines are stored, and which logs make room for new ones.

The stores for memory, SQLite and PostgreSQL write what these functions return. The Redis store decides inside its
server (`append_log.lua`); the contract suite compares it with memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.model.ids import RunId
from mainspring.model.run_log import CUT_SOURCE, CUT_TEXT, MAX_RUN_LOG_BYTES, LogEntry

#: The most logs that one call of a store's `append_log` removes.
MAX_REMOVED_LOGS = 1_000


class LogSize(NamedTuple):
    """How much of a run's log is stored: its bytes, and whether its end was cut, so that it takes no more lines."""

    bytes: int = 0
    is_cut: bool = False


def admit_lines(
    entries: Iterable[LogEntry], sizes: Mapping[RunId, LogSize]
) -> tuple[list[LogEntry], dict[RunId, LogSize]]:
    """Return the lines to store, and the new sizes of the logs that grow.

    `sizes`: for each run that exists, the size of its log. Lines of other runs are dropped. In place of the first line
    beyond `MAX_RUN_LOG_BYTES`, a line says that the rest was cut; later lines of that run are dropped.
    """
    stored: list[LogEntry] = []
    grown: dict[RunId, LogSize] = {}
    for entry in entries:
        size = grown.get(entry.run_id) or sizes.get(entry.run_id)
        if size is None or size.is_cut:
            continue
        is_cut = size.bytes + entry.size > MAX_RUN_LOG_BYTES
        if is_cut:
            entry = replace(entry, level="warning", source=CUT_SOURCE, text=CUT_TEXT)
        stored.append(entry)
        grown[entry.run_id] = LogSize(size.bytes + entry.size, is_cut)
    return stored, grown


def logs_to_remove(oldest: Sequence[tuple[RunId, int]], excess: int) -> list[tuple[RunId, int]]:
    """Return the logs to remove so that the store has `excess` bytes less: the first of `oldest`, as few as possible.

    `oldest`: the id of each run with a log and the log's bytes, oldest run first.
    """
    removed: list[tuple[RunId, int]] = []
    for run_id, size in oldest:
        if excess <= 0:
            break
        removed.append((run_id, size))
        excess -= size
    return removed
