"""Suggestions for a mistyped name: the nearest known name, found in bounded time."""

from __future__ import annotations

import difflib
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.errors import MIN_SIMILARITY_OF_SHORT_NAMES, _min_similarity, suggest_nearest

WORDS = st.text("abcdeXY-", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("value", "known", "sentence"),
    [
        ("nigthly", ["nightly", "weekly"], "Did you mean 'nightly'?"),
        ("NIGHTLY", ["Nightly"], "Did you mean 'Nightly'?"),
        ("zzz", ["nightly"], ""),
        ("05-once", ["10-gone"], ""),
        ("nightly", ["nightly report"], "Did you mean 'nightly report'?"),
        ("Monday", ["MON", "TUE"], "Did you mean 'MON'?"),
        ("sort", ["cursor", "limit"], ""),
        ("", ["a"], ""),
        ("a", [], ""),
        ("x" * 65, ["x" * 64], ""),
        ("x" * 64, ["x" * 63 + "y", "x" * 66], f"Did you mean '{'x' * 63}y'?"),
    ],
)
def test_the_nearest_name_is_suggested(value: str, known: list[str], sentence: str) -> None:
    assert suggest_nearest(value, known) == sentence


@given(value=WORDS, known=st.lists(WORDS, max_size=20))
def test_few_names_give_the_suggestion_of_difflib(value: str, known: list[str]) -> None:
    by_lower = {name.lower(): name for name in known}
    cutoff = MIN_SIMILARITY_OF_SHORT_NAMES
    found = [
        (ratio, name)
        for name in by_lower
        if (ratio := difflib.SequenceMatcher(a=name, b=value.lower()).ratio()) >= _min_similarity(value.lower(), name)
    ]
    assert all(ratio >= cutoff for ratio, _ in found)
    assert suggest_nearest(value, known) == (f"Did you mean {by_lower[max(found)[1]]!r}?" if found else "")


@pytest.mark.parametrize("length", [20, 64, 199])
def test_a_thousand_names_of_two_letters_take_milliseconds(length: int) -> None:
    """Before, names of 199 characters took 4 s of the engine's thread, in which no schedule fired."""
    rng = random.Random(7)
    known = ["".join(rng.choices("ab", k=length)) for _ in range(1_000)]
    value = "".join(rng.choices("ab", k=length))
    started = time.process_time()
    suggest_nearest(value, known)
    assert time.process_time() - started < 0.15
