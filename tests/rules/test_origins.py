"""Which program holds a name: the pure decision, and the names of functions."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st

from mainspring.app import origin
from mainspring.app.origin import origin_of
from mainspring.rules.origins import Holder, Name, describe_conflicts, find_conflicts

NAMES: list[Name] = [("task", "a"), ("schedule", "a"), ("task", "b")]
ORIGINS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["pa:a", "pb:a", "pc:a"]))
HOLDERS = st.lists(
    st.builds(
        lambda i, origins, live, recent: Holder(f"i{i}", "app", "", origins, live=live, recent=live or recent),
        st.integers(0, 5),
        ORIGINS,
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


@given(own=ORIGINS, waiting=st.sets(st.sampled_from(NAMES)), holders=HOLDERS)
def test_a_name_is_refused_exactly_if_another_holds_it_from_other_code(
    own: dict[Name, str], waiting: set[Name], holders: list[Holder]
) -> None:
    found = find_conflicts(own, waiting, holders)
    for name, mine in own.items():
        rivals = [one for one in holders if one.origins.get(name, mine) != mine]
        expected = any(one.live or (name in waiting and one.recent) for one in rivals)
        assert (name in found) is expected
        if expected:
            assert found[name].holder in rivals
            assert found[name].held_by != found[name].origin == mine
    assert found.keys() <= own.keys()


@given(own=ORIGINS, holders=HOLDERS)
def test_waiting_never_gives_a_name_earlier(own: dict[Name, str], holders: list[Holder]) -> None:
    assert find_conflicts(own, (), holders).keys() <= find_conflicts(own, own.keys(), holders).keys()


def test_the_text_names_instance_code_and_ways_out() -> None:
    own: dict[Name, str] = {("task", "job"): "pb:job", ("schedule", "job"): "pb:job"}
    holder = Holder("host:1:ab", "shop", "", dict.fromkeys(own, "pa:job"))
    (line,) = describe_conflicts(find_conflicts(own, (), [holder]).values(), 30_000)
    assert line == (
        "task 'job', schedule 'job': instance host:1:ab (app 'shop') holds this name from other code (pa:job; here "
        "pb:job). This program applies neither its schedule nor its task. Give one program its own namespace=…, or the "
        "task another name=…. This program takes over once the other has been gone for 30s"
    )


def some_task() -> None:
    return None


def test_a_function_has_its_module_and_qualified_name() -> None:
    assert origin_of(some_task) == f"{__name__}:some_task"
    assert origin_of(functools.partial(some_task)) == f"{__name__}:some_task"
    assert origin_of(origin.origin_of) == "mainspring.app.origin:origin_of"
