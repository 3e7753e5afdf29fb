"""Types of arguments and results: which annotations can be read back from JSON, and types that msgspec does not know.

These are `pathlib` paths and models with `model_dump_json` and `model_validate_json`, as those of pydantic, which need
not be installed. msgspec itself knows dataclasses, attrs classes and its own structs.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import inspect as msgspec_inspect

from mainspring.model.errors import InvalidInput


def encode_other(value: Any) -> Any:
    """Return something that msgspec can encode for a value of a type that it does not know. Raises: TypeError."""
    if isinstance(value, PurePath):
        return str(value)
    if _is_model(type(value)):
        return msgspec.Raw(value.model_dump_json(round_trip=True, by_alias=True).encode())
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


def decode_other(kind: Any, value: Any) -> Any:
    """Return a decoded JSON value as an object of a type that msgspec does not know. Raises: ValueError."""
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if _is_model(kind):
        return kind.model_validate_json(msgspec.json.encode(value))
    if kind is object:
        return value
    raise ValueError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(value).__name__}`")


def readable_part(hint: Any) -> Any:
    """Return the annotation `hint` if JSON values can be read back as it; None if they cannot, or need not, be read.

    Of a union, the members that can be stored are the result, because a value of another member is refused when it is
    encoded. Raises: TypeError, with the reason, if values of several members look the same in JSON.
    """
    if hint is None or hint is Any or hint is type(None) or hint is object:
        return None
    if Iterable in (hint, get_origin(hint)):
        hint = list[get_args(hint)] if get_args(hint) else list  # type: ignore[misc]  # a list is what JSON has
    if get_origin(hint) in (Union, types.UnionType):
        members = [one for one in get_args(hint) if one is type(None) or _is_readable(one)]
        if all(one is type(None) for one in members):
            return None
        if not any(one is Any or one is object for one in members):
            hint = functools.reduce(operator.or_, members)
            msgspec.json.Decoder(hint)
            return hint
        return None
    return hint if _is_readable(hint) else None


def check_annotation(parameter: inspect.Parameter, hint: Any) -> None:
    """Raise InvalidInput if arguments for a parameter cannot be read back as what its annotation `hint` says.

    `hint` is a text if the annotation cannot be resolved. A parameter with a default may have an annotation that cannot
    be stored at all: a call that gives it a value is refused.
    """
    is_required = parameter.default is parameter.empty
    if isinstance(hint, str):
        if is_required:
            fix = "Import the type at run time, above the function, not under TYPE_CHECKING"
            if "Context" in hint:
                fix += ", or call the parameter ctx"
            raise InvalidInput(parameter.name, f"the annotation {hint!r} cannot be resolved", fix)
        return
    try:
        part = readable_part(hint)
    except TypeError:
        raise InvalidInput(
            parameter.name,
            f"JSON cannot be read back as {_name(hint)}, because values of two members look the same there",
            "Annotate it with one of them",
        ) from None
    if part is None and is_required and not _accepts_anything(hint):
        raise InvalidInput(
            parameter.name,
            f"{_name(hint)} cannot be stored as JSON and read back",
            "Pass a key, a list, a dataclass, a pydantic model or a path, or get the object by Depends(…)",
        )


def _accepts_anything(hint: Any) -> bool:
    """Return True for an annotation that any JSON value fits: Any, object, a type variable, or a union with one."""
    if hint is None or hint is type(None) or hint is Any or hint is object:
        return True
    return get_origin(hint) in (Union, types.UnionType) and any(one in (Any, object) for one in get_args(hint))


def _is_readable(hint: Any) -> bool:
    """Return True if msgspec, with `decode_other`, can read JSON values back as `hint`."""
    if hint is Any or hint is object:
        return True
    try:
        described = msgspec_inspect.type_info(hint)
        msgspec.json.Decoder(hint)
    except (TypeError, ValueError, RuntimeError, NameError):
        return False
    return all(_is_known(custom.cls) for custom in _custom_types(described, set()))


def _is_known(kind: Any) -> bool:
    """Return True for a type that `decode_other` can make."""
    return kind is object or (isinstance(kind, type) and (issubclass(kind, PurePath) or _is_model(kind)))


def _is_model(kind: Any) -> bool:
    return callable(getattr(kind, "model_dump_json", None)) and callable(getattr(kind, "model_validate_json", None))


def _custom_types(described: Any, seen: set[int]) -> Iterator[msgspec_inspect.CustomType]:
    """Yield each type inside a described type that msgspec itself does not know. `seen`: ids of visited parts."""
    if id(described) in seen:
        return
    seen.add(id(described))
    if isinstance(described, msgspec_inspect.CustomType):
        yield described
    elif isinstance(described, tuple):
        for part in described:
            yield from _custom_types(part, seen)
    elif isinstance(described, msgspec.Struct):
        for name in described.__struct_fields__:
            value = getattr(described, name)
            if isinstance(value, tuple | msgspec.Struct):
                yield from _custom_types(value, seen)


def annotated_function(function: Callable[..., Any]) -> Any:
    """Return the function whose annotations a callable has: that of a `partial`, or `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _name(hint: Any) -> str:
    return f"`{hint.__name__}`" if isinstance(hint, type) else f"`{hint}`".replace("typing.", "")
