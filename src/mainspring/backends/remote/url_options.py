"""Options in the query part of a store's URL: `?pool=4&wait=2m`. A wrong option raises `InvalidInput`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.instant import Ms, duration_ms

#: The spellings of a flag, and what each means.
FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def parse_options(
    query: str, own: Sequence[str], driver: Sequence[str] = ()
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Split the query of a URL into (the store's options: name → value, the driver's options in their order).

    `own`: names of the store's options. `driver`: names of the driver's options. Raises: `InvalidInput` for any other
    option; the text suggests the nearest name.
    """
    options: dict[str, str] = {}
    passed_on: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in own:
            options[name] = value
        elif name in driver:
            passed_on.append((name, value))
        else:
            known = (*own, *driver)
            fix = suggest_nearest(name, known) or f"Known are {', '.join(known)}"
            raise InvalidInput("url", f"{name!r} is not an option of this store", fix)
    return options, passed_on


def read_flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return the flag `name`, or the default if the URL does not set it.

    Raises: `InvalidInput` if its value is none of the spellings in `FLAGS`.
    """
    value = FLAGS.get(options.get(name, str(int(default))).lower())
    if value is None:
        raise InvalidInput("url", f"{name}={options[name]!r} is not known", "Use 1 or 0")
    return value


def read_number(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return the number `name`, or the default if the URL does not set it.

    Raises: `InvalidInput` if it is no whole number from `least` to `most`.
    """
    text = options.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(
            "url", f"{name}={text!r} is not a number from {least} to {most}", f"The default is {default}"
        )
    return int(text)


def read_duration(options: Mapping[str, str], name: str, default: Ms) -> Ms:
    """Return the duration `name`, such as "2m", in milliseconds, or the default if the URL does not set it.

    Raises: `InvalidDuration` if it is no duration.
    """
    return duration_ms(options[name], field=f"url: {name}") if name in options else default
