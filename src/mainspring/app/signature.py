"""Payloads of tasks: a function's arguments as JSON, checked against its parameters when encoded and when decoded."""

from __future__ import annotations

import contextlib
import inspect
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import msgspec

from mainspring.app.argument_types import (
    annotated_function,
    check_annotation,
    decode_other,
    encode_other,
    readable_part,
)
from mainspring.app.context import Context
from mainspring.app.dependencies import Dependency, dependencies_of
from mainspring.model.change import Body
from mainspring.model.errors import InvalidInput, PayloadNotSerialisable, PayloadTooLarge, WrongArguments
from mainspring.model.ids import body_id
from mainspring.model.option_hints import CALL_OPTIONS, OTHER_OPTIONS

_encoder = msgspec.json.Encoder(enc_hook=encode_other)
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class Signature:
    """Parameters of a task's function, divided into the context, the dependencies, and the arguments of a run.

    Encodes the arguments as the run's payload, decodes them, and calls the function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the parameters of `function`.

        Raises: InvalidInput if only a parameter that is neither the first nor called `ctx` is annotated as `Context`,
        or if arguments for a parameter could not be read back as its annotation.
        """
        self._function = function
        self._full = inspect.signature(function)
        hints = _hints(function)
        parameters = list(self._full.parameters.values())
        #: The name of the parameter that receives the `Context`; None: there is none.
        self.context = _context_parameter(parameters, hints)
        #: The dependencies, by parameter name.
        self.needs: dict[str, Dependency] = dependencies_of(function)
        self._payload = self._full.replace(
            parameters=[p for p in parameters if p.name != self.context and p.name not in self.needs]
        )
        for parameter in self._payload.parameters.values():
            unresolved = parameter.annotation if isinstance(parameter.annotation, str) else None
            check_annotation(parameter, hints.get(parameter.name, unresolved))
        self._decoders = {name: readable_part(hints.get(name)) for name in self._payload.parameters}
        self._result = _readable_result(hints.get("return"))
        self._classify_parameters()
        #: True if the function has no parameters.
        self.plain = not self._full.parameters
        # A wrapper shows the parameters of the function that it wraps, but may itself accept them by position only.
        self._by_keyword = not hasattr(function, "__wrapped__") and all(p.kind in _BY_NAME for p in parameters)

    def _classify_parameters(self) -> None:
        """Set the fields that decide how arguments are bound and encoded, by the kinds of the payload's parameters."""
        kinds = [p.kind for p in self._payload.parameters.values()]
        self._keeps_order = any(kind in _POSITIONAL for kind in kinds)
        #: Names of the payload's parameters, in order.
        self._names = tuple(self._payload.parameters)
        self._required = frozenset(n for n, p in self._payload.parameters.items() if p.default is p.empty)
        #: True if a call without arguments is valid.
        self._optional = self._required <= {n for n, p in self._payload.parameters.items() if p.kind in _ANY_NUMBER}
        self._simple = all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
        #: The names of the payload's parameters.
        self.names = frozenset(self._names)

    # ── writing ────────────────────────────────────────────────────────────

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Body | None:
        """Return the arguments of a call as a payload; None if there are no arguments and none are required.

        Raises: WrongArguments if the arguments do not fit the parameters or the annotations; PayloadTooLarge above
        `limit` bytes; PayloadNotSerialisable.
        """
        wire = self._wire(args, kwargs) if args or kwargs or not self._optional else None
        if wire is None:
            return None
        data = encode_json(wire, "arguments")
        _check_size(data, limit, "arguments", "Store the data elsewhere and pass its key, or raise payload_limit")
        self.decode(data)
        return Body(body_id(data), data.decode())

    def _wire(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the object to encode for a call: arguments by name under "k", by position under "a".

        Return None for a call without arguments. Arguments are encoded by name, unless the function has positional-only
        parameters or `*args`. Raises: WrongArguments if they do not fit the parameters.
        """
        simple = self._by_name(args, kwargs)
        if simple is not None:
            return {"k": simple} if simple else None
        try:
            bound = self._payload.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArguments("arguments", f"{error}", self._hint(kwargs)) from None
        if not bound.arguments:
            return None
        if self._keeps_order:
            return {"a": list(bound.args), "k": dict(bound.kwargs)}
        named: dict[str, Any] = {}
        for key, value in bound.arguments.items():
            if self._payload.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            else:
                named[key] = value
        return {"k": named}

    def _hint(self, kwargs: dict[str, Any]) -> str:
        """Return what to write in a call that does not fit: an option of a call goes to `using`."""
        name = getattr(self._function, "__name__", "task")
        wrong = next((key for key in kwargs if key not in self.names), "")
        if wrong in CALL_OPTIONS:
            return f"An option of a call goes before it: {name}.using({wrong}=…).enqueue(…)"
        return OTHER_OPTIONS.get(wrong, f"The signature is {name}{self._payload}")

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call by parameter name; None if only `inspect` can bind or refuse them.

        Why: this is quicker than `inspect`. It binds only to parameters that can be given by position or name.
        """
        if not self._simple or len(args) > len(self._names):
            return None
        named = dict(zip(self._names, args, strict=False))
        if kwargs:
            if not named.keys().isdisjoint(kwargs) or not kwargs.keys() <= self._decoders.keys():
                return None
            named.update((name, kwargs[name]) for name in self._names if name in kwargs)
        return named if self._required <= named.keys() else None

    # ── reading ────────────────────────────────────────────────────────────

    def decode(self, data: str | bytes | None) -> dict[str, Any]:
        """Return the arguments that a payload holds, by parameter name, in the annotated types; empty for no payload.

        The values of `*args` are one tuple, those of `**kwargs` one dictionary. Raises: WrongArguments if the arguments
        do not fit the function, for example because it was changed since they were stored.
        """
        if not data:
            return {}
        wire = msgspec.json.decode(data)
        named = self._by_name(tuple(wire.get("a", ())), wire.get("k", {}))
        if named is not None:
            return {name: self._typed(name, value) for name, value in named.items()}
        try:
            bound = self._payload.bind(*wire.get("a", ()), **wire.get("k", {}))
        except TypeError as error:
            raise WrongArguments("arguments", f"the stored arguments do not fit: {error}") from None
        for key, value in bound.arguments.items():
            kind = self._payload.parameters[key].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[key] = tuple(self._typed(key, item) for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[key] = {name: self._typed(key, item) for name, item in value.items()}
            else:
                bound.arguments[key] = self._typed(key, value)
        return dict(bound.arguments)

    def _typed(self, name: str, value: Any) -> Any:
        """Return a decoded value, converted to the annotated type of the parameter `name`.

        A value without such an annotation is returned unchanged. Raises: WrongArguments if the value does not fit.
        """
        hint = self._decoders[name]
        if hint is None or type(value) is hint:  # not true for `list[int]`, whose items must be checked, too
            return value
        try:
            return msgspec.convert(value, hint, dec_hook=decode_other)
        except msgspec.ValidationError as error:
            raise WrongArguments(name, f"{error}", f"Got {_short(value)}") from None

    def call(self, values: dict[str, Any], context: Context, resolved: dict[str, Any]) -> Any:
        """Call the function and return what it returns, which is a coroutine for a coroutine function.

        `values` are the decoded arguments, `resolved` the values of the dependencies, both by parameter name.
        """
        if self.plain:
            return self._function()
        arguments: dict[str, Any] = {}
        for name in self._full.parameters:
            if name == self.context:
                arguments[name] = context
            elif name in resolved:
                arguments[name] = resolved[name]
            elif name in values:
                arguments[name] = values[name]
        if self._by_keyword:
            return self._function(**arguments)
        bound = inspect.BoundArguments(self._full, arguments)
        return self._function(*bound.args, **bound.kwargs)

    def result(self, text: str | None) -> Any:
        """Return the value of a run's stored result `text`, in the annotated return type if it fits.

        `text` None: the run stored no result; return None. The `repr` of a value that could not be stored is returned
        as it is: `{"$repr": …, "$type": …}`.
        """
        if text is None:
            return None
        value = msgspec.json.decode(text)
        if self._result is None or is_repr(value):
            return value
        try:
            return msgspec.convert(value, self._result, dec_hook=decode_other)
        except msgspec.ValidationError:
            return value


def payload_body(payload: Any, limit: int) -> Body | None:
    """Return the request body for an HTTP agent, which is the payload as JSON; None if the payload is None.

    Raises: PayloadTooLarge above `limit` bytes; PayloadNotSerialisable.
    """
    if payload is None:
        return None
    data = encode_json(payload, "payload")
    _check_size(data, limit, "payload", "Store the data elsewhere and send its key")
    return Body(body_id(data), data.decode())


def _check_size(data: bytes, limit: int, field: str, fix: str) -> None:
    """Raise PayloadTooLarge, which names `field` and the `fix`, if `data` has more than `limit` bytes."""
    if len(data) > limit:
        raise PayloadTooLarge(field, f"{len(data)} bytes are more than the limit of {limit}", fix)


def encode_json(value: Any, field: str) -> bytes:
    """Return a value as JSON. Raises: PayloadNotSerialisable, with the path of the part that cannot be encoded.

    `field` is the name of the value in errors.
    """
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        where, what = _culprit(value, field) or (field, error)
        verb = "Return" if field == "result" else "Pass"
        raise PayloadNotSerialisable(
            where,
            f"cannot be stored as JSON: {what}",
            f"{verb} numbers, text, lists, dictionaries, dates, paths, dataclasses, attrs classes or pydantic models",
        ) from None
    if b"null" in data:  # msgspec writes null for a number that is not finite
        for path, item in _walk(value, field):
            if isinstance(item, float) and not math.isfinite(item):
                raise PayloadNotSerialisable(path, f"{item} is not a finite number", "Pass None or a finite number")
    return data


def _walk(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield a value and all values inside it, down to 65 levels, each with its path for errors, such as `rows[3].id`.

    `path` is the path of `value`, `depth` the number of levels above `value`. The path of a named argument begins with
    the parameter's name.
    """
    yield path, value
    if depth > 64:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            name = f"{path}.{key}"
            if path == "arguments":  # {"a": […], "k": {parameter: …}}
                name = path if depth == 0 else str(key)
            yield from _walk(item, name, depth + 1)
    elif isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", depth + 1)


def _culprit(value: Any, field: str) -> tuple[str, str] | None:
    """Return (path, text about it) of the first value inside `value` that cannot be encoded; None if all can be.

    `field` is the path of `value` itself.
    """
    found: tuple[str, str] | None = None
    for path, item in _walk(value, field):
        if isinstance(item, dict | list | tuple | set):
            continue
        try:
            _encoder.encode(item)
        except Exception:
            found = (path, f"{_short(item)} is of type {type(item).__name__}")
            break
    return found


def is_repr(value: Any) -> bool:
    """Return True if a decoded result is the `repr` that was kept in place of a value that could not be stored."""
    return type(value) is dict and value.keys() == {"$repr", "$type"}


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # an object whose own `__repr__` fails
        text = f"<{type(value).__name__} object>"
    return text if len(text) <= 60 else text[:57] + "…"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function as types, without any that cannot be resolved: parameter name → type.

    The return type has the name "return".
    """
    function = annotated_function(function)
    try:
        return get_type_hints(function)
    except Exception:  # one annotation that only type checkers can resolve: resolve each by itself
        found: dict[str, Any] = {}
        for name, annotation in getattr(function, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            with contextlib.suppress(Exception):
                found |= get_type_hints(alone, getattr(function, "__globals__", {}))
        return found


def _context_parameter(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> str | None:
    """Return the name of the parameter that receives the context: the first if annotated as `Context`, else `ctx`.

    Return None if no parameter is annotated as `Context` or called `ctx`. Raises: InvalidInput if only a parameter that
    is neither the first nor called `ctx` is annotated as `Context`. `hints`: parameter name → type.
    """
    if parameters and hints.get(parameters[0].name) is Context:
        return parameters[0].name
    if any(p.name == "ctx" for p in parameters):
        return "ctx"
    wrong = [p.name for p in parameters if hints.get(p.name) is Context]
    if wrong:
        raise InvalidInput(
            wrong[0], "the Context parameter must be the first, or be called ctx", "Make it the first parameter"
        )
    return None


def _readable_result(hint: Any) -> Any:
    """Return the annotation of a result if results can be read back as it; None if they come as JSON has them."""
    try:
        return readable_part(hint)
    except TypeError:
        return None
