"""Reading requests: size, content type, JSON, unknown names, types. Every mistake is told with its place."""

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

from mainspring.api.problems import Fault, Refused, faulty
from mainspring.model.errors import nearest

T = TypeVar("T", bound=Struct)

#: A body may be this much larger than the payload in it.
ROOM = 64 * 1024
MAX_DEPTH = 32
_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)


async def read_body(request: Request, limit: int) -> bytes:
    """The raw body, refused as soon as it is longer than the limit."""
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdigit() and int(said) > limit:
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


def json_object(request: Request, data: bytes, *, optional: bool = False) -> dict[str, Any]:
    """The body as an object; `optional` lets nothing at all count as an empty one."""
    if optional and not data:
        return {}
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON.fullmatch(media):
        shown = repr(media) if media else "none"
        detail = f"The content type is {shown}; write Content-Type: application/json"
        raise Refused(415, "unsupported-media-type", detail, headers={"Accept": "application/json"})
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(400, "malformed", f"{error}{_line(data, str(error))}") from None
    except UnicodeDecodeError:
        raise Refused(400, "malformed", "The body is not UTF-8") from None
    except RecursionError:
        raise Refused(400, "malformed", f"The body is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(value, dict):
        raise faulty([Fault(f"is {_kind(value)}, not an object", pointer="#", suggestion='Write {"name": …}')])
    if _deeper(value, MAX_DEPTH):
        raise Refused(422, "invalid", f"The body is nested deeper than {MAX_DEPTH} levels")
    _check_text(value)
    return value


def _line(data: bytes, message: str) -> str:
    found = re.search(r"byte (\d+)", message)
    if found is None:
        return ""
    before = data[: int(found[1])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f", line {line} column {column}"


def _deeper(value: Any, left: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(left == 0 or _deeper(item, left - 1) for item in items if isinstance(item, dict | list))


def _check_text(value: Mapping[str, Any]) -> None:
    """Text that no store can keep (a NUL) is refused where it is, outside the payload, which is kept as it came."""
    for path, text in _texts({key: item for key, item in value.items() if key != "payload"}, "#"):
        if "\0" in text:
            raise faulty([Fault("holds a NUL character", pointer=path, suggestion="Leave it out")])


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}/{escaped(key)}", key
            yield from _texts(item, f"{path}/{escaped(key)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}/{index}")


def converted(given: Mapping[str, Any], kind: type[T], *, read_only: frozenset[str] = frozenset()) -> T:
    """The object as a struct; every unknown name and every wrong type is told, not only the first.

    Names in `read_only` may be there; whoever calls judges them.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in fields:
            try:
                values[fields[key].name] = msgspec.convert(value, fields[key].type)
            except msgspec.ValidationError as error:
                faults.append(fault_of(error, fields[key].type, f"#/{escaped(key)}", value))
        elif key not in read_only:
            hint = close_name(key, [*fields, *read_only])
            faults.append(Fault("is not a field here", pointer=f"#/{escaped(key)}", suggestion=hint or UNSET))
    for key, field in fields.items():
        if field.required and key not in given:
            faults.append(Fault("is missing", pointer=f"#/{key}", suggestion=f"Give {key!r}"))
    if faults:
        raise faulty(faults)
    return kind(**values)


def query_of(request: Request, kind: type[T]) -> T:
    """The query parameters as a struct: numbers and booleans from text, unknown names refused."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for key, value in request.query_params.multi_items():
        if key not in fields:
            hint = close_name(key, fields) or (f"Known are {', '.join(fields)}" if fields else "There are none")
            faults.append(Fault("is not a parameter here", parameter=key, suggestion=hint))
            continue
        if fields[key].name in values:
            faults.append(Fault("is given twice", parameter=key, suggestion="Give it once"))
            continue
        if "\0" in value:
            faults.append(Fault("holds a NUL character", parameter=key))
            continue
        try:
            values[fields[key].name] = msgspec.convert(_word(value), _given(fields[key].type), strict=False)
        except msgspec.ValidationError as error:
            fault = fault_of(error, fields[key].type, "", value)
            faults.append(Fault(fault.detail, parameter=key, suggestion=fault.suggestion))
    if faults:
        raise faulty(faults)
    return kind(**values)


@functools.cache
def _given(kind: Any) -> Any:
    """The type of a parameter that is there: it may be left out, but the word null is not nothing."""
    if not isinstance(kind, types.UnionType) and typing.get_origin(kind) is not typing.Union:
        return kind
    return functools.reduce(operator.or_, [part for part in typing.get_args(kind) if part is not type(None)])


def _word(value: str) -> str:
    """msgspec would read 1 and 0 as booleans and " 5 " as a number; words are words."""
    return value if value == value.strip() else f"{value}\u2028"


def close_name(value: str, known: Iterator[str] | Any) -> str:
    """'Did you mean …?', also for names that differ in the way they are written (cron_expression)."""
    names = list(known)
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in names}
    found = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", value.lower()), plain, n=1, cutoff=0.6)
    return f"Did you mean {plain[found[0]]!r}?" if found else ""


def fault_of(error: msgspec.ValidationError, kind: Any, base: str, value: Any) -> Fault:
    """A type error of msgspec as a place and a sentence."""
    found = _AT.match(str(error))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    pointer = base + "".join(f"/{escaped(part)}" for part in re.findall(r"[^.\[\]]+", path) if part != "...")
    unknown, missing = _UNKNOWN.match(what), _MISSING.match(what)
    if unknown:
        hint = close_name(unknown["name"], _names(kind)) or f"Known are {', '.join(_names(kind))}"
        return Fault("is not a field here", pointer=f"{pointer}/{escaped(unknown['name'])}", suggestion=hint)
    if missing:
        return Fault("is missing", pointer=f"{pointer}/{escaped(missing['name'])}")
    words = _words(kind)
    if words and what.startswith("Invalid enum value"):
        hint = nearest(value, words) if isinstance(value, str) else ""
        return Fault(f"{value!r} is not one of {', '.join(words)}", pointer=pointer, suggestion=hint or UNSET)
    return Fault(what[0].lower() + what[1:].replace("`", "'"), pointer=pointer)


def _parts(kind: Any) -> Iterator[Any]:
    """A type and those it is made of: through unions and annotations."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (typing.Union, typing.Annotated):
        for part in typing.get_args(kind):
            yield from _parts(part)
    else:
        yield kind


def _names(kind: Any) -> list[str]:
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, Struct):
            return [field.encode_name for field in msgspec.structs.fields(part)]
    return []


def _words(kind: Any) -> tuple[str, ...]:
    for part in _parts(kind):
        if typing.get_origin(part) is typing.Literal:
            return typing.get_args(part)
    return ()


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
