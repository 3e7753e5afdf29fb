"""Wording of mistakes for REST clients: in terms of JSON, where the texts of errors speak of Python.

A text of an error is written for Python programs. Here it is replaced where a client of the API would not understand
it, by the class of the error or by the text itself.
"""

from __future__ import annotations

import re

from mainspring.model.errors import InvalidDuration, InvalidInput, NaiveDatetime, UnknownTask

INSTANT_FIX = 'Write RFC 3339 with an offset, for example "2026-03-01T09:00:00Z" or "2026-03-01T09:00:00+01:00"'
DURATION_FIX = 'Write milliseconds as a number, or for example "500ms", "30s", "10m", "1h30m"'
TASK_FIX = "Start the service with --app MODULE:NAME of the program that has this task, or call an agent by agentUrl"

#: Type as the JSON parser names it → its name in JSON.
_TYPES = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "a number",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_WANTED_TYPES = _TYPES | {"int": "a whole number"}
_GOT_TYPES = _TYPES | {"float": "a number with a fraction", "int": "a number"}
_EXPECTED = re.compile(r"^[Ee]xpected [`'](?P<wanted>[^`']*)[`'](?P<rest>.*?)(?:, got [`'](?P<got>\w+)[`'])?$")
_BOUND = re.compile(r"^ (?P<how>[<>]=?) (?P<limit>\S+)$")
_LENGTH = re.compile(r"^ of length (?P<how>[<>]=) (?P<limit>\d+)$")
_BOUND_WORDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
#: The part of a fix that names a Python call → what to write in JSON.
_FIXES = (
    (re.compile(r"datetime|ISO 8601"), INSTANT_FIX),
    (re.compile(r"timedelta"), DURATION_FIX),
    (re.compile(r"Window\("), 'Write for example {"segments": ["09:00-17:00"], "weekdays": ["mon"]}'),
    (re.compile(r"Retry\("), 'Write for example {"maxAttempts": 5}'),
    (re.compile(r"hash_id="), "Give the schedule a name"),
)
_PYTHON_VALUE = re.compile(r"^(None|True|False)\b")
_JSON_VALUE = {"None": "null", "True": "true", "False": "false"}


def word_mistake(error: InvalidInput) -> tuple[str, str]:
    """Return what is wrong and how to correct it, in terms of JSON."""
    problem = word_value(error.problem)
    if isinstance(error, NaiveDatetime):
        return problem, INSTANT_FIX
    if isinstance(error, InvalidDuration) and "negative" not in error.problem and "too short" not in error.problem:
        return problem, DURATION_FIX
    return problem, next((words for python, words in _FIXES if python.search(error.fix)), word_null(error.fix))


def word_value(text: str) -> str:
    """Return a text that may begin with a value, with that value as JSON has it: `null`, `true`, `false`."""
    return _PYTHON_VALUE.sub(lambda found: _JSON_VALUE[found[0]], text)


def word_null(text: str) -> str:
    """Return a fix with `null` in place of None."""
    return re.sub(r"\bNone\b", "null", text)


def word_unknown_task(error: UnknownTask) -> tuple[str, str]:
    """Return what is wrong and how to correct it, for a task that the service does not know."""
    problem, _, fix = str(error).partition(". ")
    return problem, fix if fix.startswith("Did you mean") else TASK_FIX


def word_type_error(text: str) -> str:
    """Return an error text of the JSON parser, such as "Expected `int` >= 1", in words: "must be a whole number …"."""
    found = _EXPECTED.match(text)
    if found is None:
        return text[0].lower() + text[1:].replace("`", "'")
    if "matching regex" in found["rest"]:
        return "is not in the right form"
    wanted = " or ".join(_WANTED_TYPES.get(part.strip(), part.strip()) for part in found["wanted"].split("|"))
    said = f"must be {wanted}{_word_bound(found['rest'], 'item' if found['wanted'] == 'array' else 'character')}"
    return said if found["got"] is None else f"{said}, not {_GOT_TYPES.get(found['got'], found['got'])}"


def _word_bound(rest: str, unit: str) -> str:
    """Return the limit that an error text names, such as " >= 1" or " of length <= 255", in words."""
    bound, length = _BOUND.match(rest), _LENGTH.match(rest)
    if bound:
        return f" {_BOUND_WORDS[bound['how']]} {bound['limit'].removesuffix('.0')}"
    if length:
        plural = "s" if length["limit"] != "1" else ""
        return f" {_BOUND_WORDS[length['how']]} {length['limit']} {unit}{plural}"
    return rest.replace("`", "'")
