"""Retry filters: which errors of a function are worth another attempt, and what may be written as a filter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Fail, InvalidInput, Retry, RetryPolicy
from mainspring.model.policies import FilteredRetry, RetryFilter, check_retry, check_task_retry
from mainspring.rules.retry import is_worth_retry

CLASSES = (OSError, ConnectionError, TimeoutError, ConnectionResetError, ValueError, KeyError, LookupError, Exception)
some_classes = st.lists(st.sampled_from(CLASSES), max_size=4).map(tuple)
single_errors = st.sampled_from((*CLASSES, Fail)).map(lambda kind: kind("x"))
errors = st.recursive(
    single_errors, lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda all_: ExceptionGroup("g", all_))
)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


@given(error=errors, on=st.none() | some_classes.filter(bool), never=some_classes)
def test_an_error_is_tried_again_if_on_names_it_and_never_does_not(
    error: BaseException, on: tuple[type[BaseException], ...] | None, never: tuple[type[BaseException], ...]
) -> None:
    inside = leaves(error)
    ruled_out = any(isinstance(one, (Fail, *never)) for one in [error, *inside])
    named = on is None or isinstance(error, on) or all(isinstance(one, on) for one in inside)
    assert is_worth_retry(error, RetryFilter(on, never)) == (named and not ruled_out)
    assert is_worth_retry(error, None) == (not any(isinstance(one, Fail) for one in inside))


def test_a_policy_without_a_filter_is_the_plain_one() -> None:
    assert type(Retry(max_attempts=4)) is type(Retry(never=())) is RetryPolicy


def test_a_filter_is_never_part_of_what_is_stored() -> None:
    policy = Retry(max_attempts=4, jitter=0, on=ConnectionError, never=[ConnectionResetError])
    assert isinstance(policy, FilteredRetry)
    assert policy.filter == RetryFilter((ConnectionError,), (ConnectionResetError,))
    assert type(policy.plain()) is RetryPolicy
    assert policy.plain() == Retry(max_attempts=4, jitter=0)
    with pytest.raises(TypeError):
        msgspec.json.encode(policy)  # no way around `plain`
    assert check_task_retry(policy) is policy
    with pytest.raises(InvalidInput, match=r"^retry.on: names classes, .* Give it to the task: @ms.task\(retry=Retry"):
        check_retry(policy)
    with pytest.raises(InvalidInput, match=r"^retry.never: names classes"):
        check_retry(Retry(never=ValueError))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": "ConnectionError"}, r"retry.on: 'ConnectionError' is not an exception class. Write for example on="),
        ({"on": (ConnectionError(),)}, r"retry.on: ConnectionError\(\) is not an exception class"),
        ({"on": ()}, r"retry.on: is empty, so no error is tried again. Write Retry\(max_attempts=1\)"),
        ({"never": [404]}, r"retry.never: 404 is not an exception class. Write for example never=\("),
        ({"never": int}, "retry.never: <class 'int'> is not an exception class"),
    ],
)
def test_what_is_no_exception_class_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{words}"):
        Retry(**options)
