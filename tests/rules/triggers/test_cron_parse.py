"""Reading cron text: what is accepted, what is refused, and where the refusal points."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.model.errors import InvalidCron, InvalidInput, UnknownZone
from mainspring.rules.triggers import Cron
from mainspring.rules.triggers.cron_parse import parse

SAME = [
    ("? ? ? ? ?", "* * * * *"),
    ("0 9 * * Mon-Fri", "0 9 * * 1-5"),
    ("0 9 * jan,dec sun", "0 9 * 1,12 0"),
    ("0 9 * * 7", "0 9 * * 0"),
    ("0 9 * * 5-7", "0 9 * * 0,5,6"),
    ("0 9 * * 0-7", "0 9 * * 0-6"),
    ("0 9 * * 7-2", "0 9 * * 0-2"),
    ("0 9 * * FRI-MON", "0 9 * * 5,6,0,1"),
    ("0 9 * * MON/2", "0 9 * * 1,3,5"),
    ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
    ("0 22-3/2 * * *", "0 22,0,2 * * *"),
    ("50-10/10 * * * *", "50,0,10 * * * *"),
    ("0 0 30-2 * *", "0 0 30,31,1,2 * *"),
    ("0 0 1 NOV-FEB *", "0 0 1 11,12,1,2 *"),
    ("5/15 * * * *", "5,20,35,50 * * * *"),
    ("10-30/5 * * * *", "10,15,20,25,30 * * * *"),
    ("*/25 0 * * *", "0,25,50 0 * * *"),
    ("*/90 0 * * *", "0 0 * * *"),
    ("0 0 lw * *", "0 0 LW * *"),
    ("0 0 * * fril", "0 0 * * 5L"),
    ("0 0 * * fri#2", "0 0 * * 5#2"),
    ("0 0 * * 7L", "0 0 * * SUNL"),
    ("@yearly", "0 0 1 1 *"),
    ("@ANNUALLY", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@Daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    (" @hourly ", "0 * * * *"),
    ("  0   9\t* * *  ", "0 9 * * *"),
    ("0 0 9 * * *", "0 9 * * *"),
    ("05 09 01 * *", "5 9 1 * *"),
]


@pytest.mark.parametrize(("text", "meaning"), SAME)
def test_means_the_same(text: str, meaning: str) -> None:
    left, right = parse(text), parse(meaning)
    assert [field.values for field in left.fields] == [field.values for field in right.fields]
    assert [field.specials for field in left.fields] == [field.specials for field in right.fields]


WRONG = [
    ("", "expression", 0, "empty"),
    ("   ", "expression", 0, "empty"),
    ("* * * *", "expression", 7, "4 fields found"),
    ("*", "expression", 1, "1 field found"),
    ("0 0 0 1 1 * 2026", "expression", 12, "year field"),
    ("1 2 3 4 5 6 7 8", "expression", 12, "8 fields found"),
    ("@reboot", "expression", 0, "not known"),
    ("@dayly", "expression", 0, "@daily"),
    ("@daily 5", "expression", 7, "alone"),
    ("x" * 300, "expression", 256, "too many"),
    ("60 * * * *", "minute", 0, "60 is out of range"),
    ("60 * * * * *", "second", 0, "60 is out of range"),
    ("0 60 * * * *", "minute", 2, "60 is out of range"),
    ("* 24 * * *", "hour", 2, "0-23"),
    ("* * 0 * *", "day-of-month", 4, "1-31"),
    ("* * 32 * *", "day-of-month", 4, "32 is out of range"),
    ("* * * 13 *", "month", 6, "1-12"),
    ("* * * 0 *", "month", 6, "0 is out of range"),
    ("* * * * 8", "day-of-week", 8, "0-7"),
    ("0,5,61 * * * *", "minute", 4, "61 is out of range"),
    ("0-70 * * * *", "minute", 2, "70 is out of range"),
    ("-5 * * * *", "minute", 0, "not a value"),
    ("5- * * * *", "minute", 2, "missing"),
    ("1-2-3 * * * *", "minute", 2, "not a value"),
    ("*/0 * * * *", "minute", 2, "not a step"),
    ("*/ * * * *", "minute", 2, "step is missing"),
    ("*/x * * * *", "minute", 2, "not a step"),
    ("*/5/5 * * * *", "minute", 2, "not a step"),
    ("*5 * * * *", "minute", 0, "not a value"),
    ("1,,2 * * * *", "minute", 2, "empty"),
    (", * * * *", "minute", 0, "empty"),
    ("1, * * * *", "minute", 2, "empty"),
    ("1.5 * * * *", "minute", 0, "not a value"),
    ("٣ * * * *", "minute", 0, "not a value"),
    ("0 9 MON * *", "day-of-month", 4, "day-of-week name"),
    ("0 9 * MON *", "month", 6, "day-of-week name"),
    ("0 9 * * JAN", "day-of-week", 8, "month name"),
    ("0 MON * * *", "hour", 2, "day-of-week name"),
    ("0 9 * * MOM", "day-of-week", 8, "Did you mean 'MON'?"),
    ("0 9 * * Monday", "day-of-week", 8, "Did you mean 'MON'?"),
    ("0 9 * JANU *", "month", 6, "Did you mean 'JAN'?"),
    ("0 9 * * MON-FRU", "day-of-week", 12, "Did you mean 'FRI'?"),
    ("0 9 * * L", "day-of-week", 8, "needs a weekday"),
    ("0 9 * * 5#6", "day-of-week", 10, "5#1 to 5#5"),
    ("0 9 * * 5#0", "day-of-week", 10, "5#1 to 5#5"),
    ("0 9 * * 5#", "day-of-week", 10, "5#1 to 5#5"),
    ("0 9 * * #2", "day-of-week", 8, "missing"),
    ("0 9 * * 1-5#2", "day-of-week", 8, "not a value"),
    ("0 9 * * 9L", "day-of-week", 8, "out of range"),
    ("0 9 L-31 * *", "day-of-month", 6, "L-1 to L-30"),
    ("0 9 L-x * *", "day-of-month", 6, "L-1 to L-30"),
    ("0 9 LL * *", "day-of-month", 4, "Write L"),
    ("0 9 L/2 * *", "day-of-month", 4, "Write L"),
    ("0 9 32W * *", "day-of-month", 4, "out of range"),
    ("0 9 W * *", "day-of-month", 4, "missing"),
    ("0 9 1-5W * *", "day-of-month", 4, "not a value"),
    ("0 L * * *", "hour", 2, "not a value"),
    ("H * * * *", "minute", 0, "hash_id"),
    ("0 H(0-5) * * *", "hour", 2, "hash_id"),
]


@pytest.mark.parametrize(("text", "field", "position", "says"), WRONG)
def test_refuses(text: str, field: str, position: int, says: str) -> None:
    with pytest.raises(InvalidCron) as caught:
        Cron(text)
    assert (caught.value.field, caught.value.position) == (field, position)
    assert says in str(caught.value)
    assert caught.value.expression == text
    assert caught.value.fix


@pytest.mark.parametrize(
    "text", ["H(5-1) * * * *", "H(0-60) * * * *", "Hx * * * *", "H() * * * *", "H(1,2) * * * *", "H/0 * * * *"]
)
def test_refuses_a_wrong_hash(text: str) -> None:
    with pytest.raises(InvalidCron) as caught:
        Cron(text, hash_id="a")
    assert caught.value.field == "minute"


def test_wrong_count_says_what_five_and_six_mean() -> None:
    with pytest.raises(InvalidCron, match=r"5 fields are minute hour .*6 fields put seconds first"):
        Cron("* * *")


@pytest.mark.parametrize("text", [None, 5, b"* * * * *"])
def test_refuses_what_is_not_text(text: object) -> None:
    with pytest.raises(InvalidCron):
        Cron(text)  # type: ignore[arg-type]


def test_refuses_wrong_choices() -> None:
    with pytest.raises(UnknownZone, match="Europe/Berlin"):
        Cron("* * * * *", "Europe/Berln")
    with pytest.raises(InvalidInput, match="gap"):
        Cron("* * * * *", gap="jump")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Did you mean 'first'"):
        Cron("* * * * *", overlap="fist")  # type: ignore[arg-type]


def test_hash_is_stable_and_spread() -> None:
    def minute(hash_id: str) -> int:
        return parse("H * * * *", hash_id).minutes[0]

    assert [minute(f"schedule-{n}") for n in range(4)] == [minute(f"schedule-{n}") for n in range(4)]
    assert len({minute(f"schedule-{n}") for n in range(500)}) == 60
    assert {parse("0 0 H * *", f"s{n}").days.values[0] for n in range(500)} == set(range(1, 29))
    assert {parse("0 0 * * H", f"s{n}").weekdays.values[0] for n in range(200)} == set(range(7))


@pytest.mark.parametrize("hash_id", ["a", "b", "nightly", "ü"])
def test_hash_with_steps_and_ranges(hash_id: str) -> None:
    every = parse("H/15 * * * *", hash_id).minutes
    assert len(every) == 4
    assert every[0] < 15
    assert all(later - earlier == 15 for earlier, later in pairwise(every))
    assert parse("H(0-29) * * * *", hash_id).minutes[0] < 30
    some = parse("H(10-29)/10 * * * *", hash_id).minutes
    assert len(some) == 2
    assert 10 <= some[0] < 20


def test_the_hash_never_changes() -> None:
    """Stored schedules depend on it: these values may not move between releases."""
    fields = parse("H H H H H", "nightly")
    assert [field.values for field in fields.fields[1:]] == [(42,), (18,), (22,), (2,), (5,)]


CHARACTERS = st.text(alphabet="0123456789*/-,?LWH#() @MONFRIJAnud\t\n\x00é", max_size=40)
FIELD = st.one_of(
    st.sampled_from(
        ["*", "?", "*/5", "0", "1-5", "22-2", "L", "LW", "15W", "5L", "FRI#2", "H", "H/7", "MON-FRI", "JAN", "5/15"]
    ),
    st.integers(-1, 70).map(str),
    st.builds("{}-{}/{}".format, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60)),
    st.text(alphabet="0123456789*/-,?LWH#", min_size=1, max_size=6),
)


@settings(max_examples=400, deadline=None)
@given(
    text=st.one_of(st.text(max_size=300), CHARACTERS, st.lists(FIELD, min_size=4, max_size=7).map(" ".join)),
    hash_id=st.sampled_from([None, "x"]),
)
@example(text="0 0 29 2 1#5", hash_id=None)
@example(text="0 0 31 2 *", hash_id=None)
def test_any_text_is_refused_with_a_position_or_works(text: str, hash_id: str | None) -> None:
    try:
        cron = Cron(text, "Europe/Berlin", hash_id=hash_id)
    except InvalidCron as error:
        assert 0 <= error.position <= len(text)  # noqa: PT017
        return
    found = cron.next_ms(1_700_000_000_000)
    assert (found is None) == cron.never
    assert found is None or found > 1_700_000_000_000
    assert cron.describe().endswith("(Europe/Berlin)")
    cron.lint()
