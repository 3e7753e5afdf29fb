"""Query values of agents' URLs: they may be secrets, so a URL is stored and shown without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput

#: Stands for a secret value wherever it is shown. In an edit, it stands for the value that is stored.
MASK = "***"


class _Item(Struct, frozen=True):
    """One part of a query: `name=value`, or a value without a name, whose `name` is None."""

    name: str | None
    value: str

    def __str__(self) -> str:
        return self.value if self.name is None else f"{self.name}={self.value}"


def query_of(url: str) -> str:
    """Return the query of a URL, without its question mark; "" if the URL has none."""
    return url.partition("#")[0].partition("?")[2]


def with_query(url: str, query: str) -> str:
    """Return the URL, which has a query, with `query` in its place."""
    front, mark, fragment = url.partition("#")
    return f"{front.partition('?')[0]}?{query}{mark}{fragment}"


def has_query_values(url: str) -> bool:
    """Return True if the URL has a query with a value in it."""
    return any(item.value for item in _items(query_of(url)))


def hide_query_values(url: str) -> str:
    """Return the URL with `***` in place of each value of its query; names stay, and so do values that are empty."""
    query = query_of(url)
    if not query:
        return url
    return with_query(url, "&".join(str(replace(one, value=one.value and MASK)) for one in _items(query)))


def fill_query_values(url: str, stored: str, *, field: str = "url") -> str:
    """Return the URL with the value from the query `stored` in place of each value that is `***`.

    A value is found by its name; if the name comes several times, the first of them in `url` is the first in `stored`.
    Raises `InvalidInput`, which names `field`, if `stored` has no such value.
    """
    query = query_of(url)
    if MASK not in query:
        return url
    known: dict[str | None, list[str]] = defaultdict(list)
    for item in _items(stored):
        if item.value:
            known[item.name].append(item.value)
    seen: dict[str | None, int] = defaultdict(int)
    filled: list[str] = []
    for item in _items(query):
        place = seen[item.name]
        seen[item.name] += bool(item.value)
        if item.value != MASK:
            filled.append(str(item))
            continue
        if place >= len(known[item.name]):
            name = "" if item.name is None else f" of {item.name!r}"
            problem = f"*** in the query stands for a stored value{name}, and none is stored"
            raise InvalidInput(field, problem, "Send the value; write three stars as %2A%2A%2A")
        filled.append(str(replace(item, value=known[item.name][place])))
    return with_query(url, "&".join(filled))


def secret_values(query: str) -> tuple[str, ...]:
    """Return the values of a query, as they are written and decoded, to find them in texts."""
    if not query:
        return ()
    from urllib.parse import unquote, unquote_plus  # here, because only programs with agents need it

    values = [item.value for item in _items(query) if item.value]
    return tuple(dict.fromkeys(text for value in values for text in (value, unquote(value), unquote_plus(value))))


def _items(query: str) -> Iterator[_Item]:
    for part in query.split("&"):
        name, mark, value = part.partition("=")
        yield _Item(name, value) if mark else _Item(None, part)
