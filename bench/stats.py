"""The few statistics the tables need."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed (nearest rank); the values must be in order."""
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def condensed(figures: dict[str, Any]) -> dict[str, Any]:
    """A run's figures with its list of milliseconds replaced by what is read from it."""
    kept = {key: value for key, value in figures.items() if key != "ms"}
    values = sorted(figures.get("ms", ()))
    if values:
        kept |= {
            "p50_ms": percentile(values, 0.5),
            "p99_ms": percentile(values, 0.99),
            "max_ms": values[-1],
            "within_10ms": sum(value <= 10 for value in values),
        }
    return kept


def median(runs: Sequence[dict[str, Any]], key: str) -> float | None:
    """Over the runs that have the figure; None when none has."""
    values = [run[key] for run in runs if isinstance(run.get(key), int | float)]
    return statistics.median(values) if values else None


def spread(runs: Sequence[dict[str, Any]], key: str) -> tuple[float, float] | None:
    """The least and the greatest."""
    values = [run[key] for run in runs if isinstance(run.get(key), int | float)]
    return (min(values), max(values)) if values else None
