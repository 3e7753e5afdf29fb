"""Options in the query of a remote store's URL."""

from __future__ import annotations

import pytest

from mainspring.backends.remote.url_options import parse_options, read_duration, read_flag, read_number
from mainspring.model.errors import InvalidInput


def test_own_options_are_split_from_those_of_the_driver() -> None:
    options, passed_on = parse_options("pool=2&sslmode=require&wait=", ("pool", "wait"), ("sslmode",))
    assert options == {"pool": "2", "wait": ""}
    assert passed_on == [("sslmode", "require")]


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match=r"'pol' is not an option of this store.*Did you mean 'pool'"):
        parse_options("pol=2", ("pool", "wait"))


def test_values_are_read_with_their_defaults() -> None:
    assert [read_flag({"a": text}, "a") for text in ("1", "Yes", "0", "FALSE")] == [True, True, False, False]
    assert (read_flag({}, "a", default=True), read_number({}, "n", 4, 1, 9), read_duration({}, "d", 7)) == (True, 4, 7)
    assert (read_number({"n": "9"}, "n", 4, 1, 9), read_duration({"d": "2m"}, "d", 7)) == (9, 120_000)


def test_wrong_values_are_refused_with_a_fix() -> None:
    with pytest.raises(InvalidInput, match="Use 1 or 0"):
        read_flag({"a": "maybe"}, "a")
    for text in ("0", "10", "x", "-1", ""):
        with pytest.raises(InvalidInput, match=r"not a number from 1 to 9.*The default is 4"):
            read_number({"n": text}, "n", 4, 1, 9)
