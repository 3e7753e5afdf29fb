"""Every zone of the tz database against the oracle: `make chaos` takes all of them, `make test` a few.

Zones whose data files are the same byte for byte are one history under several names. It is compared once; the other
names must then give the same offset changes, so that every name has been looked at.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import zoneinfo
from collections import defaultdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest
from test_cron_oracle import EXPRESSIONS

from mainspring.rules.triggers.zone_table import changes
from tests.rules.triggers.oracle import Difference, Tally, compare_zone, utc_second

#: How many names to take: all of them in `make chaos`.
NAMES = int(os.environ.get("MAINSPRING_ZONES", "2"))
NOW = 2026


def data_of(name: str) -> bytes:
    """The file that zoneinfo reads for this name."""
    for folder in zoneinfo.TZPATH:
        if (path := Path(folder, name)).is_file():
            return path.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def groups(names: list[str]) -> list[list[str]]:
    """Names with the same history, the first one to be compared."""
    same: dict[bytes, list[str]] = defaultdict(list)
    for name in names:
        same[data_of(name)].append(name)
    return list(same.values())


def busiest_year(name: str) -> int:
    """The latest of the years with the most offset changes."""
    found = [datetime.fromtimestamp(c.at, UTC).year for c in changes(name, utc_second(1850), utc_second(2101))]
    return max(found, key=lambda year: (found.count(year), year), default=NOW - 1)


def compare(group: list[str]) -> tuple[list[str], list[Difference], Tally, list[int]]:
    """One history in its most eventful year and in ours; and that its other names tell the same."""
    first, *others = group
    years = sorted({busiest_year(first), NOW})
    tally = Tally()
    found = compare_zone(first, EXPRESSIONS, years, tally)
    told = changes(first, utc_second(1850), utc_second(2101))
    for name in others:
        if changes(name, utc_second(1850), utc_second(2101)) != told:
            found.append(Difference(name, "", "", "", "changes", first, name))
    return group, found, tally, years


@pytest.mark.chaos
@pytest.mark.timeout(7_200)
def test_all_zones_agree_with_the_oracle() -> None:
    assert len(EXPRESSIONS) >= 60
    names = sorted(zoneinfo.available_timezones())
    assert len(names) > 590, "the tz database is not whole"
    names = names[:: max(1, len(names) // NAMES)][:NAMES] if len(names) > NAMES else names
    todo = groups(names)
    total, differences, seen, years = Tally(), [], 0, set()
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for done, (group, found, tally, in_years) in enumerate(pool.imap_unordered(compare, todo), 1):
            seen += len(group)
            differences += found
            total.expressions += tally.expressions
            total.fires += tally.fires
            total.windows += tally.windows
            years.update(in_years)
            if done % 20 == 0 or done == len(todo):
                spent = time.monotonic() - begun
                print(f"zones: {seen} of {len(names)} names, {total.fires:,} fires, {spent:.0f} s", flush=True)
    print(
        f"zones: {seen} names with {len(todo)} histories × {len(EXPRESSIONS)} expressions in {len(years)} years: "
        f"{total.expressions:,} stretches, {total.fires:,} fires, {total.windows:,} windows, "
        f"{len(differences)} differences"
    )
    assert seen == len(names)
    assert not differences, "\n".join(map(str, differences[:10]))
    assert total.fires > 50_000 * len(todo)
