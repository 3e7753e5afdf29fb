"""Parser of requests: size and content type of the body, JSON, names and types of fields and query parameters.

If fields or parameters have wrong names or types, the answer lists up to `MAX_FAULTS` of them, each with its first
mistake, as a `Fault`. Of the NUL characters in a body, only the first is reported. Any other mistake (size, content
type, syntax, nesting) is reported alone.
"""

from __future__ import annotations

import difflib
import functools
import operator
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import ClientDisconnect, Request

from mainspring.api.problems import Fault, Refused, invalid_request
from mainspring.api.wording import DURATION_FIX, word_type_error
from mainspring.model.errors import suggest_nearest

T = TypeVar("T", bound=Struct)

#: The most levels of nested objects and arrays in a body.
MAX_DEPTH = 32
#: A body with this many mistakes is refused without a look at its other fields: each mistake costs a search for names.
MAX_FAULTS = 20
#: An error text of msgspec: what is wrong, and perhaps the path to the value.
_MSGSPEC_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_DURATION_PATTERN = "(ms|s|m|h|d|w)"
#: Name in other APIs, or in Python → name of the field with that meaning.
SYNONYMS = {
    "args": "payload",
    "body": "payload",
    "cron": "cronExpression",
    "data": "payload",
    "delay": "delayMs",
    "end": "endAt",
    "every": "intervalMs",
    "expression": "cronExpression",
    "interval": "intervalMs",
    "kwargs": "payload",
    "method": "httpMethod",
    "once": "at",
    "retries": "retryPolicy",
    "retry": "retryPolicy",
    "schedule": "cronExpression",
    "start": "startAt",
    "state": "status",
    "timeout": "timeoutMs",
    "tz": "timezone",
    "url": "agentUrl",
    "zone": "timezone",
}
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)


async def read_body(request: Request, limit: int) -> bytes:
    """Return the raw body of a request. Raises: Refused if it has more than `limit` bytes, or if it ends early."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            parts.append(chunk)
    except ClientDisconnect:
        raise Refused(400, "malformed", "The body ended early") from None
    return b"".join(parts)


def _too_large(limit: int) -> Refused:
    return Refused(413, "too-large", f"The body is larger than {limit} bytes", headers={"Connection": "close"})


def parse_json_object(
    request: Request, data: bytes, *, optional: bool = False, from_agent: bool = False
) -> dict[str, Any]:
    """Parse `data`, the body of a request, as a JSON object: name → value. Raises: Refused if it is anything else.

    `optional`: an empty body counts as an empty object. `from_agent`: the body is a callback of an agent; accept any
    Content-Type, and NUL characters in texts, which are replaced before they are stored.
    """
    if optional and not data:
        return {}
    if not from_agent:
        _check_media_type(request)
    value = _decode_json(data)
    if not isinstance(value, dict):
        fault = Fault(f"is {_type_name(value)}, not an object", pointer="#", suggestion='Write {"name": …}')
        raise invalid_request([fault])
    if _is_deeper(value, MAX_DEPTH):
        raise Refused(422, "invalid", f"The body is nested deeper than {MAX_DEPTH} levels")
    if not from_agent:
        _check_text(value)
    return value


def _check_media_type(request: Request) -> None:
    """Raise Refused, with 415, if the Content-Type of a request is not JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON.fullmatch(media):
        shown = repr(media) if media else "none"
        detail = f"The content type is {shown}; write Content-Type: application/json"
        raise Refused(415, "unsupported-media-type", detail, headers={"Accept": "application/json"})


def _decode_json(data: bytes) -> Any:
    """Decode JSON. Raises: Refused with 400; with line and column if msgspec's error text gives the position."""
    if not data.strip():
        raise Refused(400, "malformed", "The body is empty; send a JSON object")
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(400, "malformed", f"{error}{_format_position(data, str(error))}") from None
    except UnicodeDecodeError:
        raise Refused(400, "malformed", "The body is not UTF-8") from None
    except RecursionError:
        raise Refused(400, "malformed", f"The body is nested deeper than {MAX_DEPTH} levels") from None


def _format_position(data: bytes, message: str) -> str:
    """Return ", line 3 column 7" for the byte of `data` that an error text of msgspec names, or "" if it names none."""
    found = re.search(r"byte (\d+)", message)
    if found is None:
        return ""
    before = data[: int(found[1])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f", line {line} column {column}"


def _is_deeper(value: Any, left: int) -> bool:
    """Return True if `value` contains objects or arrays in more than `left` levels, not counting `value` itself."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(left == 0 or _is_deeper(item, left - 1) for item in items if isinstance(item, dict | list))


def _check_text(value: Mapping[str, Any]) -> None:
    """Raise Refused if a field name or text in a body contains a NUL character, except inside the field `payload`.

    Why: PostgreSQL cannot store a NUL character. The payload is stored as JSON text, in which it is escaped.
    """
    for path, text in _iter_texts({key: item for key, item in value.items() if key != "payload"}, "#"):
        if "\0" in text:
            raise invalid_request([Fault("holds a NUL character", pointer=path, suggestion="Leave it out")])


def _iter_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, text) for every text in a JSON value. The name of a field is a text, too.

    `path` is the JSON pointer of `value` itself.
    """
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}/{escape_pointer(key)}", key
            yield from _iter_texts(item, f"{path}/{escape_pointer(key)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_texts(item, f"{path}/{index}")


def convert_object(given: Mapping[str, Any], kind: type[T], *, read_only: frozenset[str] = frozenset()) -> T:
    """Convert `given`, the JSON object in a request's body, to a struct of type `kind`.

    Fields whose JSON names are in `read_only` are accepted and ignored; the caller checks their values. Raises:
    Refused, with a fault for every unknown field, missing field and field of a wrong type.
    """
    values, faults = convert_fields(given, kind, read_only=read_only)
    if faults:
        raise invalid_request(faults)
    return kind(**values)


def convert_fields(
    given: Mapping[str, Any], kind: type[Struct], *, read_only: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[Fault]]:
    """Convert the fields of the JSON object `given` to the types of the fields of `kind`.

    Return the fields without a mistake (attribute → value), and a fault for every unknown field, missing field and
    field of a wrong type. Fields whose JSON names are in `read_only` are ignored.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for key, value in given.items():
        field = fields.get(key)
        if field is not None:
            try:
                values[field.name] = msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                faults.append(describe_type_error(error, field.type, f"#/{escape_pointer(key)}", value))
        elif key not in read_only:
            hint = suggest_name(key, [*fields, *read_only])
            faults.append(Fault("is not a field here", pointer=f"#/{escape_pointer(key)}", suggestion=hint or UNSET))
        if len(faults) >= MAX_FAULTS:
            raise invalid_request(faults)
    missing = [key for key, field in fields.items() if field.required and key not in given]
    faults += [Fault("is missing", pointer=f"#/{key}", suggestion=f"Give {key!r}") for key in missing]
    return values, faults


def parse_query(request: Request, kind: type[T]) -> T:
    """Parse the query parameters of a request into a struct of type `kind`, which has one field per parameter.

    Raises: Refused, with a fault for every unknown, repeated or wrong parameter.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for key, value in request.query_params.multi_items():
        field = fields.get(key)
        if field is None:
            hint = suggest_name(key, fields) or (f"Known are {', '.join(fields)}" if fields else "There are none")
            faults.append(Fault("is not a parameter here", parameter=key, suggestion=hint))
        elif field.name in values:
            faults.append(Fault("is given twice", parameter=key, suggestion="Give it once"))
        else:
            try:
                values[field.name] = _convert_parameter(value, field.type)
            except Refused as error:
                faults += [Fault(one.detail, parameter=key, suggestion=one.suggestion) for one in error.errors]
    if faults:
        raise invalid_request(faults)
    return kind(**values)


def _convert_parameter(value: str, kind: Any) -> Any:
    """Convert the text of a query parameter to type `kind`. Raises: Refused; the caller adds the parameter's name."""
    if "\0" in value:
        raise invalid_request([Fault("holds a NUL character")])
    try:
        return msgspec.convert(_block_loose_match(value), _without_none(kind), strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request([describe_type_error(error, kind, "", value)]) from None


@functools.cache
def _without_none(kind: Any) -> Any:
    """Return the type `kind` of a query parameter without None, for example `str` for `str | None`.

    Why: None stands for a parameter that was left out. Without this, msgspec would read the text "null" as None.
    """
    if not isinstance(kind, types.UnionType) and typing.get_origin(kind) is not typing.Union:
        return kind
    return functools.reduce(operator.or_, [part for part in typing.get_args(kind) if part is not type(None)])


def _block_loose_match(value: str) -> str:
    """Return the value of a query parameter; if white space surrounds it, append the character U+2028.

    Why: msgspec would read " 5 " as the number 5. With U+2028 it refuses the value for a number or a list of words. A
    parameter that is a free text is not refused: the appended character stays in it.
    """
    return value if value == value.strip() else f"{value}\u2028"


def suggest_name(value: str, known: Iterator[str] | Any) -> str:
    """Return the hint "Did you mean …?" with the name in `known` that is most like `value`; "" if none is like it.

    Case and punctuation do not count, so `cron_expression` finds `cronExpression`.
    """
    names = list(known)
    if SYNONYMS.get(value) in names:
        return f"Did you mean {SYNONYMS[value]!r}?"
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in names}
    found = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", value.lower()), plain, n=1, cutoff=0.65)
    return f"Did you mean {plain[found[0]]!r}?" if found else ""


def describe_type_error(error: msgspec.ValidationError, kind: Any, base: str, value: Any) -> Fault:
    """Translate a type error of msgspec into a `Fault` that names the place of the mistake.

    `value` is the value that msgspec could not convert to the type `kind`. `base` is the JSON pointer to this value; ""
    for a query parameter.
    """
    found = _MSGSPEC_ERROR.match(str(error))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    pointer = base + "".join(f"/{escape_pointer(part)}" for part in re.findall(r"[^.\[\]]+", path) if part != "...")
    unknown, missing = _UNKNOWN_FIELD.match(what), _MISSING_FIELD.match(what)
    if unknown:
        known = _field_names(kind)
        hint = suggest_name(unknown["name"], known) or f"Known are {', '.join(known)}"
        return Fault("is not a field here", pointer=f"{pointer}/{escape_pointer(unknown['name'])}", suggestion=hint)
    if missing:
        return Fault("is missing", pointer=f"{pointer}/{escape_pointer(missing['name'])}")
    if what.startswith("Invalid enum value"):
        inner, part = _find_inner(kind, value, re.findall(r"[^.\[\]]+", path))
        return _fault_for_word(part, _literals(inner), pointer)
    if _DURATION_PATTERN in what:
        return Fault("is not a duration", pointer=pointer, suggestion=DURATION_FIX)
    said = word_type_error(what)
    return Fault(said if base else said.removesuffix(", not a string"), pointer=pointer)  # a parameter is always text


def _find_inner(kind: Any, value: Any, path: list[str]) -> tuple[Any, Any]:
    """Return the type and the value at `path`, names of fields and numbers in arrays, inside a value of type `kind`."""
    for part in path:
        if isinstance(value, list):
            items = [typing.get_args(one)[0] for one in _iter_types(kind) if typing.get_origin(one) is list]
            kind, value = items[0], value[int(part)]
        else:
            structs = (one for one in _iter_types(kind) if isinstance(one, type) and issubclass(one, Struct))
            fields = {field.encode_name: field.type for one in structs for field in msgspec.structs.fields(one)}
            kind, value = fields.get(part, Any), value[part]
    return kind, value


def _fault_for_word(value: Any, words: tuple[str, ...], pointer: str) -> Fault:
    """Return the fault of a value outside the allowed `words`; it suggests the word most like it, if any."""
    hint = suggest_nearest(value, words) if isinstance(value, str) else ""
    return Fault(f"{json_text(value)} is not one of {', '.join(words)}", pointer=pointer, suggestion=hint or UNSET)


def json_text(value: Any) -> str:
    """Return a value of a request as JSON, cut to 60 characters, for an error text."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


def _iter_types(kind: Any) -> Iterator[Any]:
    """Yield the types that `kind` joins, if it is a union or an `Annotated`, at any depth; else yield `kind` itself."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (typing.Union, typing.Annotated):
        for part in typing.get_args(kind):
            yield from _iter_types(part)
    else:
        yield kind


def _field_names(kind: Any) -> list[str]:
    """Return the JSON field names of the struct type `kind`, or of the first struct in a union; else an empty list."""
    for part in _iter_types(kind):
        if isinstance(part, type) and issubclass(part, Struct):
            return [field.encode_name for field in msgspec.structs.fields(part)]
    return []


def _literals(kind: Any) -> tuple[str, ...]:
    """Return the values of the `Literal` type `kind`, or of the first `Literal` in a union; else an empty tuple."""
    for part in _iter_types(kind):
        if typing.get_origin(part) is typing.Literal:
            return typing.get_args(part)
    return ()


def escape_pointer(name: str) -> str:
    """Escape a name for use as one part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _type_name(value: Any) -> str:
    """Return the JSON type of a value that is not an object, with an article, for an error text: "an array"."""
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
