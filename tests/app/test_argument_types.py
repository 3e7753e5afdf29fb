"""Types of arguments and results: what comes back as it was given, and what is refused when it is decorated."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

import attrs
import pydantic
import pytest

from mainspring import Depends, InvalidInput, Mainspring, WrongArguments
from mainspring.testing import travel

if TYPE_CHECKING:
    from mainspring import Context

T = TypeVar("T")


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    sku: str = pydantic.Field(alias="stock-keeping-unit")
    ordered: date

    @pydantic.computed_field
    def label(self) -> str:
        return self.sku


class Order(pydantic.BaseModel):
    number: int
    lines: list[Line]


@attrs.define
class Customer:
    name: str
    since: date


@dataclass
class Parcel:
    order: Order
    label: Path
    weights: dict[str, float]


class Session:
    """An object that cannot be stored."""


class Sender(Protocol):
    def send(self) -> None: ...


class Greeter:
    def __call__(self, to: Customer) -> None: ...


ORDER = Order(number=7, lines=[Line(**{"stock-keeping-unit": "x-1"}, ordered=date(2026, 1, 5))])
CUSTOMER = Customer("acme", date(2020, 2, 2))


def of_order(x: Order) -> Any: ...
def of_orders(x: dict[str, list[Order]]) -> Any: ...
def of_order_or_none(x: Order | None) -> Any: ...
def of_customer(x: Customer) -> Any: ...
def of_parcel(x: Parcel) -> Any: ...
def of_path(x: Path) -> Any: ...
def of_pure_path(x: PurePosixPath | None) -> Any: ...
def of_paths(*x: Path) -> Any: ...
def of_iterable(x: Iterable[date]) -> Any: ...
def of_object(x: object) -> Any: ...
def of_any(x: T) -> Any: ...
def of_text_or_session(x: str | Session) -> Any: ...
def of_id(x: int | UUID | None) -> Any: ...


ROUND_TRIPS: list[tuple[Callable[..., Any], Any]] = [
    (of_order, ORDER),
    (of_orders, {"a": [ORDER, ORDER]}),
    (of_order_or_none, None),
    (of_order_or_none, ORDER),
    (of_customer, CUSTOMER),
    (of_parcel, Parcel(ORDER, Path("/tmp/label.pdf"), {"x": 0.5})),
    (of_path, Path("reports") / "2026.csv"),
    (of_pure_path, PurePosixPath("/etc/hosts")),
    (of_iterable, [date(2026, 1, 5)]),
    (of_object, {"x": 1}),
    (of_any, "anything"),
    (of_text_or_session, "text"),
    (of_id, UUID(int=7)),
    (of_id, 7),
]


@pytest.mark.parametrize(("shape", "value"), ROUND_TRIPS, ids=lambda value: getattr(value, "__name__", ""))
async def test_arguments_and_results_come_back_as_they_were_given(shape: Callable[..., Any], value: Any) -> None:
    ms = Mainspring("memory://")
    seen: list[Any] = []

    def echo(x: Any) -> Any:
        seen.append(x)
        return x

    echo.__annotations__ = {"x": shape.__annotations__["x"], "return": shape.__annotations__["x"]}
    task = ms.task(echo)
    async with travel(ms, "2026-01-05T08:00Z") as t:
        handle = await task.enqueue(value)
        await t.settle()
        assert seen == [value]
        assert type(seen[0]) is type(value)
        assert await handle.result() == value


async def test_annotations_of_partials_objects_and_variable_arguments_are_read() -> None:
    ms = Mainspring("memory://")
    paths = ms.task(of_paths)
    assert paths.signature.decode('{"a":["x","y"]}') == {"x": (Path("x"), Path("y"))}
    bound = ms.task(name="partial")(partial(of_parcel))
    assert bound.signature.decode('{"k":{"x":{"order":{"number":1,"lines":[]},"label":"a","weights":{}}}}') == {
        "x": Parcel(Order(number=1, lines=[]), Path("a"), {})
    }
    greet = ms.task(name="object")(Greeter())
    assert greet.signature.decode('{"k":{"to":{"name":"acme","since":"2020-02-02"}}}') == {"to": CUSTOMER}


@pytest.mark.parametrize(
    ("shape", "value", "words"),
    [
        (of_order, {"number": "many"}, "x: .*validation error.* for Order.*number.*Got {'number': 'many'}"),
        (of_order, 7, "x: .*for Order"),
        (of_path, 7, r"x: Expected `Path`, got `int`\. Got 7"),
        (of_customer, {"name": "acme"}, "x: Object missing required field `since`"),
        (of_parcel, Parcel(ORDER, 7, {}), r"x: Expected `Path`, got `int` - at `\$.label`"),  # type: ignore[arg-type]  # a mistake
        (of_id, "text", "x: Invalid UUID"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_value_that_does_not_fit_is_refused_when_it_is_enqueued(
    shape: Callable[..., Any], value: Any, words: str
) -> None:
    ms = Mainspring("memory://")
    with pytest.raises(WrongArguments, match=f"(?s)^{words}"):
        await ms.task(shape).enqueue(value)
    assert await ms.runs() == []
    await ms.close()


def takes_session(session: Session) -> None: ...
def takes_sessions(sessions: list[Session]) -> None: ...
def takes_function(callback: Callable[[int], int]) -> None: ...
def takes_protocol(sender: Sender) -> None: ...
def takes_generator(rows: collections.abc.Iterator[int]) -> None: ...
def takes_iterable(rows: Iterable[Session]) -> None: ...
def takes_text_or_path(path: str | Path) -> None: ...
def takes_text_or_date(day: str | date | None = None) -> None: ...
def takes_two_models(item: Order | Customer) -> None: ...
def takes_unknown(price: Decimal) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - a mistake
def takes_context(context: Context, n: int) -> None: ...
def takes_many(**more: Session) -> None: ...


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (takes_session, r"session: `Session` cannot be stored as JSON and read back. Pass a key, .*Depends\(…\)"),
    (takes_sessions, "sessions: `list.*Session.*` cannot be stored as JSON"),
    (takes_function, "callback: `.*Callable.*` cannot be stored"),
    (takes_protocol, "sender: `Sender` cannot be stored"),
    (takes_generator, "rows: `.*Iterator.*` cannot be stored"),
    (takes_iterable, "rows: `.*Iterable.*Session.*` cannot be stored as JSON and read back. Pass a key, a list"),
    (takes_text_or_path, "path: JSON cannot be read back as `str | .*Path`: .*Annotate it with one"),
    (takes_text_or_date, "day: JSON cannot be read back"),
    (takes_two_models, "item: JSON cannot be read back"),
    (takes_unknown, "price: the annotation 'Decimal' cannot be resolved. Import the type at run time, above the"),
    (takes_context, "context: the annotation 'Context' cannot be resolved. .*or call the parameter ctx"),
    (takes_many, "more: `Session` cannot be stored"),
]


@pytest.mark.parametrize(("function", "words"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_an_annotation_that_cannot_be_read_back_is_refused_when_decorated(
    function: Callable[..., Any], words: str
) -> None:
    ms = Mainspring("memory://")
    for decorate in (ms.task, ms.every("1h"), ms.task(executor="thread")):
        with pytest.raises(InvalidInput, match=f"^{words}"):
            decorate(function)
    assert (ms.tasks, ms.declared) == ({}, ())


def test_what_no_run_passes_may_have_any_annotation() -> None:
    ms = Mainspring("memory://")

    @ms.task
    def send(to: str, session: Session | None = None, at: datetime | None = None) -> Session:
        return session or Session()

    @ms.task
    def work(n: int, session: Session = Depends(Session)) -> None: ...  # noqa: B008 - as users write it

    assert send.signature.decode('{"k":{"to":"acme","at":"2026-01-05T08:00:00Z"}}')["at"].year == 2026
    with pytest.raises(InvalidInput, match=r"session: cannot be stored as JSON: .*is of type Session"):
        send.sync.enqueue("acme", session=Session())
    ms.sync.close()
