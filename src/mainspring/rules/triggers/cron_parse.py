"""Parsing of cron expressions: text to the values that each field names. Errors have the position of the mistake."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple, NoReturn

from msgspec import Struct

from mainspring.model.errors import InvalidCron, suggest_nearest
from mainspring.model.instant import nearest_duration

MAX_CRON_CHARS = 256
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
    """A kind of field, such as hour: its name, its lowest and highest number, and the names of the numbers, if any.

    `more` lists the notations that only this kind has, as text for error messages.
    """

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    more: str = ""

    @property
    def allowed(self) -> str:
        named = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"Allowed: {self.low}-{self.high}{named}, lists a,b, ranges a-b, steps */n{self.more}"


SECOND_KIND = Kind("second", 0, 59)
MINUTE_KIND = Kind("minute", 0, 59)
HOUR_KIND = Kind("hour", 0, 23)
DAY_KIND = Kind("day-of-month", 1, 31, (), ", L (last day), L-3, LW, 15W")
MONTH_KIND = Kind("month", 1, 12, MONTH_NAMES)
WEEKDAY_KIND = Kind("day-of-week", 0, 7, WEEKDAY_NAMES, ", 5L (last Friday), 5#2 (second Friday)")
FIELD_KINDS = (SECOND_KIND, MINUTE_KIND, HOUR_KIND, DAY_KIND, MONTH_KIND, WEEKDAY_KIND)


class Special(NamedTuple):
    """A rule whose day depends on the month, such as L, 15W or 5#2.

    `what` is the name of the rule. Its parameters: `number` is the day or the week of the month, or the number of days
    before the last day; `weekday` is the weekday, 0 = Sunday.
    """

    what: str
    number: int
    weekday: int = 0


class Item(NamedTuple):
    """One entry of a field's comma-separated list, with the numbers that it names (`values`) or its `special` rule.

    `star`: True if it begins with * or ?. `step`: the number behind the slash; 1 if there is none.
    """

    text: str
    values: tuple[int, ...]
    special: Special | None = None
    star: bool = False
    step: int = 1
    #: The entry as cron text in which H is replaced by its value.
    plain: str = ""


class Field(Struct, frozen=True):
    """One field of an expression: its text, its entries, the numbers that they name, and their special rules."""

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
        """The field as cron text in which H is replaced by its value and ? by *."""
        return ",".join(item.plain for item in self.items)


def is_uneven(field: Field, item: Item) -> bool:
    """Return True if an entry such as */7 has a step that does not divide its range, so that its last gap differs."""
    size = 7 if field.kind is WEEKDAY_KIND else field.kind.high - field.kind.low + 1
    return item.star and item.step > 1 and (field.kind is DAY_KIND or size % item.step != 0)


class CronFields(Struct, frozen=True, eq=False):
    """The six fields of an expression, from second to day of week. Without seconds in the text, the first field is 0.

    `with_seconds`: True if the text has six fields. `parse` caches: for equal arguments it usually returns one object,
    so objects are compared by identity.
    """

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
        """True if the expression names times of day: neither the minute nor the hour field begins with * or ?."""
        return not (self.fields[1].starred or self.fields[2].starred)

    @property
    def days_or_weekdays(self) -> bool:
        """True if a day matches if one of the two day fields matches (Vixie's rule). False: both must match."""
        return not (self.days.starred or self.weekdays.starred)


class Token(NamedTuple):
    """A part of the text `expression`, with its position and the kind of its field: all that an error must name."""

    expression: str
    text: str
    position: int
    kind: Kind

    def part(self, start: int, end: int | None = None) -> Token:
        return self._replace(text=self.text[start:end], position=self.position + start)

    def fail(self, problem: str, fix: str = "") -> NoReturn:
        raise InvalidCron(self.expression, self.position, self.kind.name, problem, fix or self.kind.allowed)


def parse(expression: str, hash_id: str | None = None) -> CronFields:
    """Return the parsed fields of an expression. The values of H are derived from the text `hash_id`.

    Raises `InvalidCron`, with the position of the mistake, also if the expression has an H and `hash_id` is None.
    """
    if not isinstance(expression, str):
        raise InvalidCron(
            repr(expression),
            0,
            "expression",
            f"{type(expression).__name__} is not text",
            'Write text such as "*/5 * * * *"',
        )
    if len(expression) > MAX_CRON_CHARS:
        raise InvalidCron(
            expression,
            MAX_CRON_CHARS,
            "expression",
            f"{len(expression)} characters are too many",
            f"Use at most {MAX_CRON_CHARS}",
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
        for (text, position), kind in zip(tokens, FIELD_KINDS, strict=True)
    )
    return CronFields((first, second, third, fourth, fifth, sixth), with_seconds)


def _expand(expression: str, tokens: list[tuple[str, int]]) -> list[tuple[str, int]]:
    name, position = tokens[0]
    if len(tokens) > 1:
        raise InvalidCron(
            expression, tokens[1][1], "expression", f"{tokens[1][0]!r} after {name}", f"Write {name} alone, or fields"
        )
    if name.lower() not in MACROS:
        fix = suggest_nearest(name, MACROS) or f"Known are {' '.join(MACROS)}"
        if name.lower() == "@reboot":
            fix = 'Write every="1h", first="now" for a first run when the schedule is created, not at each start'
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
    interval = nearest_duration(expression)
    fix = f'An interval goes to every: every="{interval}"' if interval else _COUNTS
    raise InvalidCron(expression, position, "expression", f"{count}, 5 or 6 needed", fix)


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
        return _single_value(token, _number(base), step if suffix else None)
    low, high = _number(base.part(0, dash)), _number(base.part(dash + 1))
    return Item(token.text, tuple(_range(kind, low, high)[::step]), step=step, plain=token.text.upper())


def _single_value(token: Token, value: int, step: int | None) -> Item:
    """Return the entry for a single value. With a step, it names the value and every step-th value above it."""
    kind = token.kind
    value = value % 7 if kind is WEEKDAY_KIND else value
    if step is None:
        return Item(token.text, (value,), plain=token.text.upper())
    suffix = token.text[token.text.index("/") :]
    return Item(token.text, tuple(range(value, _top(kind) + 1, step)), step=step, plain=f"{value}{suffix}")


def _top(kind: Kind) -> int:
    """Return the highest value of a kind of field. For weekdays it is 6, Saturday, because 7 means Sunday as 0 does."""
    return 6 if kind is WEEKDAY_KIND else kind.high


def _range(kind: Kind, low: int, high: int) -> list[int]:
    """Return the values from `low` to `high` in order. If `high` is the smaller one, the range wraps around."""
    if kind is WEEKDAY_KIND:
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
    for other in (MONTH_KIND, WEEKDAY_KIND):
        if other is not kind and upper in other.names:
            token.fail(f"{text!r} is a {other.name} name", f"Move it to the {other.name} field. {kind.allowed}")
    near = suggest_nearest(text, kind.names)
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
    if token.kind is DAY_KIND:
        return _special_day(token, upper)
    if token.kind is WEEKDAY_KIND:
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
    """Return the entry for H, H/15, H(0-29) or H(0-29)/10: values that depend only on `hash_id` and the kind of field.

    `token` is the text of the entry, `base` the text without the step. `step` None: the entry has no step.
    """
    kind = token.kind
    low, high = _hash_range(base)
    if hash_id is None:
        base.fail("H needs a name to be derived from", "Give hash_id=, or use it in a schedule, whose name it takes")
    digest = hashlib.sha256(f"{hash_id}\0{kind.name}".encode(errors="surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big")
    size = high - low + 1
    if step is None:
        value = low + number % size
        return Item(token.text, (value % 7 if kind is WEEKDAY_KIND else value,), plain=str(value))
    start = low + number % min(step, size)
    plain = f"{start}/{step}" if high == _top(kind) else f"{start}-{high}/{step}"
    values = (value % 7 if kind is WEEKDAY_KIND else value for value in range(start, high + 1, step))
    return Item(token.text, tuple(values), step=step, plain=plain)


def _hash_range(base: Token) -> tuple[int, int]:
    """Return the lowest and highest value of H or H(low-high). Days of H alone end at 28, which every month has."""
    kind = base.kind
    found = _HASH.fullmatch(base.text)
    if found is None:
        base.fail(f"{base.text!r} is not a value", f"Write H, H/15, H(0-29) or H(0-29)/10. {kind.allowed}")
    if found.group(1) is None:
        return kind.low, 28 if kind is DAY_KIND else _top(kind)
    low, high = _number(base.part(*found.span(1))), _number(base.part(*found.span(2)))
    if low > high:
        base.fail(f"{base.text!r} runs backwards", f"Write H({high}-{low})")
    return low, high
