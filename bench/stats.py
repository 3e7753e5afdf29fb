"""The statistics that the tables need."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that at least `share` of them do not exceed (nearest rank)."""
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def condensed(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a run with its list of milliseconds replaced by percentiles and counts."""
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
    """Return the median of a figure over the runs that have it; None if no run has it."""
    values = [run[key] for run in runs if isinstance(run.get(key), int | float)]
    return statistics.median(values) if values else None


def spread(runs: Sequence[dict[str, Any]], key: str) -> tuple[float, float] | None:
    """Return the least and the greatest value of a figure."""
    values = [run[key] for run in runs if isinstance(run.get(key), int | float)]
    return (min(values), max(values)) if values else None
