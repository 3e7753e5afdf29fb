"""Cron text to values: every field read, checked, and refused with its name and the position of the mistake."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple, NoReturn

from msgspec import Struct

from mainspring.model.errors import InvalidCron, nearest

MAX_LENGTH = 256
WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_WORDS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTH_WORDS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_COUNTS = "5 fields are minute hour day-of-month month day-of-week; 6 fields put seconds first"
_HASH = re.compile(r"H(?:\(([^()-]*)-([^()-]*)\))?", re.IGNORECASE)


class Kind(NamedTuple):
    """A field's name, its numbers, the names of those numbers, and what else may be written."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    more: str = ""

    @property
    def allowed(self) -> str:
        named = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"Allowed: {self.low}-{self.high}{named}, lists a,b, ranges a-b, steps */n{self.more}"


SECOND = Kind("second", 0, 59)
MINUTE = Kind("minute", 0, 59)
HOUR = Kind("hour", 0, 23)
DAY = Kind("day-of-month", 1, 31, (), ", L (last day), L-3, LW, 15W")
MONTH = Kind("month", 1, 12, MONTH_NAMES)
WEEKDAY = Kind("day-of-week", 0, 7, WEEKDAY_NAMES, ", 5L (last Friday), 5#2 (second Friday)")
KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


class Special(NamedTuple):
    """A day that depends on the month: what it is, its number, and its weekday where it has one."""

    what: str
    number: int
    weekday: int = 0


class Item(NamedTuple):
    """One entry of a field's list."""

    text: str
    values: tuple[int, ...]
    special: Special | None = None
    star: bool = False
    step: int = 1
    #: The same without H.
    plain: str = ""


class Field(Struct, frozen=True):
    """One field: the numbers it names, the days that depend on the month, and how it was written."""

    kind: Kind
    text: str
    items: tuple[Item, ...]
    values: tuple[int, ...]
    specials: tuple[Special, ...]

    @property
    def starred(self) -> bool:
        return self.text[0] in "*?"

    @property
    def plain(self) -> str:
        """The field as cron text in which H is worked out and ? is *."""
        return ",".join(item.plain for item in self.items)


class CronFields(Struct, frozen=True, eq=False):
    """A whole expression; `parse` gives the same object for the same text, so it is told apart by identity."""

    fields: tuple[Field, Field, Field, Field, Field, Field]
    with_seconds: bool

    @property
    def seconds(self) -> tuple[int, ...]:
        return self.fields[0].values

    @property
    def minutes(self) -> tuple[int, ...]:
        return self.fields[1].values

    @property
    def hours(self) -> tuple[int, ...]:
        return self.fields[2].values

    @property
    def days(self) -> Field:
        return self.fields[3]

    @property
    def months(self) -> tuple[int, ...]:
        return self.fields[4].values

    @property
    def weekdays(self) -> Field:
        return self.fields[5]

    @property
    def fixed_time(self) -> bool:
        """Whether the schedule names times of day, rather than following elapsed time."""
        return not (self.fields[1].starred or self.fields[2].starred)

    @property
    def days_or_weekdays(self) -> bool:
        """Whether a day matches by either day field (Vixie's rule) rather than by both."""
        return not (self.days.starred or self.weekdays.starred)


class Token(NamedTuple):
    """A stretch of the expression: all of it, the stretch, where it begins, and the field it belongs to."""

    expression: str
    text: str
    position: int
    kind: Kind

    def part(self, start: int, end: int | None = None) -> Token:
        return self._replace(text=self.text[start:end], position=self.position + start)

    def fail(self, problem: str, fix: str = "") -> NoReturn:
        raise InvalidCron(self.expression, self.position, self.kind.name, problem, fix or self.kind.allowed)


def parse(expression: str, hash_id: str | None = None) -> CronFields:
    """Read an expression; `hash_id` is what H is derived from."""
    if not isinstance(expression, str):
        raise InvalidCron(
            repr(expression),
            0,
            "expression",
            f"{type(expression).__name__} is not text",
            'Write text such as "*/5 * * * *"',
        )
    if len(expression) > MAX_LENGTH:
        raise InvalidCron(
            expression,
            MAX_LENGTH,
            "expression",
            f"{len(expression)} characters are too many",
            f"At most {MAX_LENGTH} are read",
        )
    return _parse(expression, hash_id if "h" in expression.lower() else None)


@lru_cache(maxsize=4096)
def _parse(expression: str, hash_id: str | None) -> CronFields:
    tokens = [(found.group(), found.start()) for found in re.finditer(r"\S+", expression)]
    if tokens and tokens[0][0].startswith("@"):
        tokens = _expand(expression, tokens)
    if len(tokens) not in (5, 6):
        _wrong_count(expression, tokens)
    with_seconds = len(tokens) == 6
    if not with_seconds:
        tokens.insert(0, ("0", 0))
    first, second, third, fourth, fifth, sixth = (
        _field(Token(expression, text, position, kind), hash_id)
        for (text, position), kind in zip(tokens, KINDS, strict=True)
    )
    return CronFields((first, second, third, fourth, fifth, sixth), with_seconds)


def _expand(expression: str, tokens: list[tuple[str, int]]) -> list[tuple[str, int]]:
    name, position = tokens[0]
    if len(tokens) > 1:
        raise InvalidCron(
            expression, tokens[1][1], "expression", f"{tokens[1][0]!r} after {name}", f"Write {name} alone, or fields"
        )
    if name.lower() not in MACROS:
        fix = nearest(name, MACROS) or f"Known are {' '.join(MACROS)}"
        raise InvalidCron(expression, position, "expression", f"{name!r} is not known", fix)
    return [(text, position) for text in MACROS[name.lower()].split()]


def _wrong_count(expression: str, tokens: list[tuple[str, int]]) -> NoReturn:
    if not tokens:
        raise InvalidCron(expression, 0, "expression", "it is empty", _COUNTS)
    if len(tokens) == 7:
        raise InvalidCron(
            expression,
            tokens[6][1],
            "expression",
            "7 fields found: a year field is not supported",
            f"Remove it. {_COUNTS}",
        )
    position = tokens[6][1] if len(tokens) > 6 else len(expression)
    count = f"{len(tokens)} field{'' if len(tokens) == 1 else 's'} found"
    raise InvalidCron(expression, position, "expression", f"{count}, 5 or 6 needed", _COUNTS)


def _field(token: Token, hash_id: str | None) -> Field:
    items, start = [], 0
    for text in token.text.split(","):
        part = token.part(start, start + len(text))
        if not text:
            part.fail("an entry of the list is empty", "Write a value on both sides of every comma")
        items.append(_item(part, hash_id))
        start += len(text) + 1
    values = tuple(sorted({value for item in items for value in item.values}))
    specials = tuple(dict.fromkeys(item.special for item in items if item.special is not None))
    return Field(token.kind, token.text, tuple(items), values, specials)


def _item(token: Token, hash_id: str | None) -> Item:
    special = _special(token)
    if special is not None:
        return Item(token.text, (), special, plain=token.text.upper())
    slash = token.text.find("/")
    base = token if slash < 0 else token.part(0, slash)
    step = 1 if slash < 0 else _step(token.part(slash + 1))
    kind, suffix = token.kind, token.text[len(base.text) :]
    if base.text in ("*", "?"):
        values = range(kind.low, _top(kind) + 1)[::step]
        return Item(token.text, tuple(values), star=True, step=step, plain="*" + suffix)
    if base.text[:1] in ("H", "h"):
        return _hashed(token, base, step if suffix else None, hash_id)
    dash = base.text.find("-", 1)
    if dash < 0:
        value = _number(base)
        if slash < 0:
            return Item(token.text, (value % 7 if kind is WEEKDAY else value,), plain=token.text.upper())
        value = value % 7 if kind is WEEKDAY else value
        return Item(token.text, tuple(range(value, _top(kind) + 1, step)), step=step, plain=f"{value}{suffix}")
    low, high = _number(base.part(0, dash)), _number(base.part(dash + 1))
    return Item(token.text, tuple(_range(kind, low, high)[::step]), step=step, plain=token.text.upper())


def _top(kind: Kind) -> int:
    """The last value of a whole field: Saturday for weekdays, whose 7 is Sunday again."""
    return 6 if kind is WEEKDAY else kind.high


def _range(kind: Kind, low: int, high: int) -> list[int]:
    """The values of low-high in order; a range whose end is the smaller goes round."""
    if kind is WEEKDAY:
        days = range(low, high + 1 if low <= high else high + 8)
        return [day % 7 for day in days][:7]
    if low <= high:
        return list(range(low, high + 1))
    return [*range(low, kind.high + 1), *range(kind.low, high + 1)]


def _number(token: Token) -> int:
    text, kind = token.text, token.kind
    if _digits(text):
        value = int(text)
        if not kind.low <= value <= kind.high:
            token.fail(f"{text} is out of range")
        return value
    upper = text.upper()
    if upper in kind.names:
        return kind.names.index(upper) + kind.low
    if not text:
        token.fail("a value is missing")
    for other in (MONTH, WEEKDAY):
        if other is not kind and upper in other.names:
            token.fail(f"{text!r} is a {other.name} name", f"Move it to the {other.name} field. {kind.allowed}")
    near = nearest(text, kind.names)
    return token.fail(f"{text!r} is not a value", f"{near} {kind.allowed}" if near else "")


def _step(token: Token) -> int:
    if not _digits(token.text) or int(token.text) == 0:
        token.fail(
            f"{token.text!r} is not a step" if token.text else "a step is missing", "A step is a number from 1 up"
        )
    return int(token.text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _special(token: Token) -> Special | None:
    upper = token.text.upper()
    if token.kind is DAY:
        return _special_day(token, upper)
    if token.kind is WEEKDAY:
        return _special_weekday(token, upper)
    return None


def _special_day(token: Token, upper: str) -> Special | None:
    if upper == "L":
        return Special("last", 0)
    if upper in ("LW", "WL"):
        return Special("last-weekday", 0)
    if upper.startswith("L-"):
        rest = token.part(2)
        if not _digits(rest.text) or int(rest.text) > 30:
            rest.fail(f"{rest.text!r} is not a number of days before the last", "Write L-1 to L-30")
        return Special("last", int(rest.text))
    if upper.startswith("L"):
        token.fail(
            f"{token.text!r} is not a day", "Write L (last day), L-3 (three days before it) or LW (last weekday)"
        )
    if upper.endswith("W"):
        return Special("nearest-weekday", _number(token.part(0, len(upper) - 1)))
    return None


def _special_weekday(token: Token, upper: str) -> Special | None:
    if upper == "L":
        token.fail("L needs a weekday", "Write 5L for the last Friday, or L in the day-of-month field for the last day")
    sign = upper.find("#")
    if sign >= 0:
        nth = token.part(sign + 1)
        weekday = _number(token.part(0, sign)) % 7
        if nth.text not in ("1", "2", "3", "4", "5"):
            nth.fail(f"{nth.text!r} is not a week of the month", "Write 5#1 to 5#5, or 5L for the last Friday")
        return Special("nth", int(nth.text), weekday)
    if upper.endswith("L"):
        return Special("last", 0, _number(token.part(0, len(upper) - 1)) % 7)
    return None


def _hashed(token: Token, base: Token, step: int | None, hash_id: str | None) -> Item:
    """H, H/15, H(0-29) or H(0-29)/10: a value that is this schedule's own, and stays the same."""
    kind = token.kind
    found = _HASH.fullmatch(base.text)
    if found is None:
        base.fail(f"{base.text!r} is not a value", f"Write H, H/15, H(0-29) or H(0-29)/10. {kind.allowed}")
    low, high = kind.low, 28 if kind is DAY else _top(kind)
    if found.group(1) is not None:
        low, high = _number(base.part(*found.span(1))), _number(base.part(*found.span(2)))
        if low > high:
            base.fail(f"{base.text!r} runs backwards", f"Write H({high}-{low})")
    if hash_id is None:
        base.fail("H needs a name to be derived from", "Give hash_id=, or use it in a schedule, whose name it takes")
    digest = hashlib.sha256(f"{hash_id}\0{kind.name}".encode(errors="surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big")
    size = high - low + 1
    if step is None:
        value = low + number % size
        return Item(token.text, (value % 7 if kind is WEEKDAY else value,), plain=str(value))
    start = low + number % min(step, size)
    plain = f"{start}/{step}" if high == _top(kind) else f"{start}-{high}/{step}"
    values = (value % 7 if kind is WEEKDAY else value for value in range(start, high + 1, step))
    return Item(token.text, tuple(values), step=step, plain=plain)
