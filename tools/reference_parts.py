"""Markdown of the reference: read signatures, types, defaults and comments from the code, and write tables of them.

The comment of a field is the lines `#:` above it. A function or method is shown with its signature and its docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from msgspec import Struct

#: Longest signature on one line of a code block.
MAX_SIGNATURE_CHARS = 110


class Field(Struct, frozen=True):
    """A field of a class: its type and default as text ("" without one), and its comment."""

    name: str
    type: str
    default: str
    comment: str


@cache
def class_body(kind: type) -> tuple[ast.ClassDef, list[str]]:
    """Return the syntax tree of a class, and the lines of its module."""
    lines = Path(inspect.getsourcefile(kind) or "").read_text(encoding="utf-8").splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            return node, lines
    raise LookupError(kind)


def comment_above(lines: list[str], line: int) -> str:
    """Return the text of the lines `#:` directly above line number `line`, counted from 1."""
    found: list[str] = []
    for text in reversed(lines[: line - 1]):
        if not text.strip().startswith("#:"):
            break
        found.insert(0, text.strip()[2:].strip())
    return " ".join(found)


def fields_of(kind: type) -> list[Field]:
    """Return the annotated fields that a class itself defines, in the order of the source."""
    node, lines = class_body(kind)
    module = vars(sys.modules[kind.__module__])
    return [
        Field(
            one.target.id,
            type_text(one.annotation, module),
            "" if one.value is None else ast.unparse(one.value),
            comment_above(lines, one.lineno),
        )
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_")
    ]


def type_text(annotation: ast.expr | None, names: Mapping[str, Any]) -> str:
    """Return a type as the source has it; an alias of words, such as `Missed`, is shown as the words."""
    text = "Any" if annotation is None else ast.unparse(annotation).strip("'")

    def words(match: re.Match[str]) -> str:
        value = names.get(match.group())
        return " | ".join(f'"{one}"' for one in get_args(value)) if get_origin(value) is Literal else match.group()

    text = re.sub(r"\b[A-Z]\w+\b", words, text)
    return re.sub(r"Literal\[([^\]]*)\]", lambda m: m.group(1).replace(", ", " | "), text).replace("'", '"')


def cell(text: str) -> str:
    """Return a text for a cell of a table: on one line, with its bars escaped."""
    return " ".join(text.replace("|", "\\|").split())


def code(text: str) -> str:
    """Return a text as code for a cell of a table; "" for an empty text."""
    return f"`{cell(text)}`" if text else ""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def options_table(kinds: Iterable[type], defaults: Mapping[str, str] | None = None) -> str:
    """Return the table of the options that some typed dictionaries or structs define. Every option has a comment.

    `defaults`: option → text of its default; None: the defaults of the class. Raises: SystemExit if one has no comment.
    """
    rows = []
    for kind in kinds:
        for one in fields_of(kind):
            if not one.comment:
                raise SystemExit(f"{kind.__name__}.{one.name} has no comment #: in {kind.__module__}")
            default = one.default if defaults is None else defaults.get(one.name, "")
            shown = default if default.startswith("the ") else code(default.replace("'", '"'))
            rows.append((code(one.name), code(one.type), shown, cell(one.comment)))
    return table(("option", "type", "default", "meaning"), rows)


def fields_table(kind: type, fallback: str | None = None) -> str:
    """Return the table of the fields of a class. `fallback`: the meaning of a field without a comment.

    Raises: SystemExit if a field has none.
    """
    rows = []
    for one in fields_of(kind):
        if not one.comment and fallback is None:
            raise SystemExit(f"{kind.__name__}.{one.name} has no comment #: in {kind.__module__}")
        rows.append((code(one.name), code(one.type), cell(one.comment or fallback or "")))
    return table(("field", "type", "meaning"), rows)


def docstring(node: ast.AST | object) -> str:
    """Return a docstring, its first sentence on a line of its own, as paragraphs without line breaks."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        text = ast.get_docstring(node) or ""
    else:
        text = inspect.getdoc(node) or ""
    if not text:
        raise SystemExit(f"{getattr(node, 'name', node)} has no docstring")
    return "\n\n".join(part if part.startswith("- ") else " ".join(part.split()) for part in re.split(r"\n\s*\n", text))


def signature_text(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, module: Mapping[str, Any]) -> str:
    """Return a signature as code, without `self`; one parameter a line if it is long."""
    given = node.args
    parts: list[str] = []

    def one(argument: ast.arg, default: ast.expr | None = None, stars: str = "") -> str:
        text = stars + argument.arg
        if argument.annotation is not None:
            text += ": " + type_text(argument.annotation, module)
        return text if default is None else f"{text} = {ast.unparse(default)}".replace("'", '"')

    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    parts += [one(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if given.vararg is not None:
        parts.append(one(given.vararg, stars="*"))
    elif given.kwonlyargs:
        parts.append("*")
    parts += [one(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(one(given.kwarg, stars="**"))
    answer = "" if node.returns is None or node.name == "__init__" else f" -> {type_text(node.returns, module)}"
    start = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    text = f"{start}{name}({', '.join(parts)}){answer}"
    if len(text) <= MAX_SIGNATURE_CHARS:
        return text
    return f"{start}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"


def _is(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    return any(ast.unparse(one).split(".")[-1].split("(")[0] == name for one in node.decorator_list)


def methods_of(kind: type) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public methods and properties of a class, and of its base classes in this project, in their order."""
    seen: set[str] = set()
    for base in (kind, *(one for one in kind.__mro__[1:] if one.__module__.startswith("mainspring"))):
        for one in class_body(base)[0].body:
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) or one.name.startswith("_"):
                continue
            if one.name not in seen and not _is(one, "overload"):
                seen.add(one.name)
                yield one


def members(kind: type, owner: str, *, level: int = 3, leave_out: tuple[str, ...] = ()) -> str:
    """Return a section for each public method of a class, and before them a table of its properties.

    `owner` is the name of an object of the class in examples, such as `ms`.
    """
    module = vars(sys.modules[kind.__module__])
    attributes, sections = [], []
    for one in methods_of(kind):
        if one.name in leave_out:
            continue
        if _is(one, "property"):
            text = " ".join(docstring(one).split())
            attributes.append((code(f"{owner}.{one.name}"), code(type_text(one.returns, module)), cell(text)))
        else:
            shown = signature_text(one, f"{owner}.{one.name}", module)
            sections.append(f"{'#' * level} `{one.name}`\n\n```text\n{shown}\n```\n\n{docstring(one)}")
    found = [table(("attribute", "type", "meaning"), attributes)] if attributes else []
    return "\n\n".join([*found, *sections])


def function_section(function: Any, name: str = "", level: int = 2) -> str:
    """Return the section about a function: its signature and its docstring."""
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    name = name or node.name
    shown = signature_text(node, name, vars(sys.modules[function.__module__]))
    return f"{'#' * level} `{name}`\n\n```text\n{shown}\n```\n\n{docstring(node)}"


def class_section(kind: type, *, constructor: bool = False, level: int = 2) -> str:
    """Return the section about a class: its constructor if users call it, and its docstring."""
    node, _ = class_body(kind)
    parts = [f"{'#' * level} `{kind.__name__}`"]
    for one in node.body:
        if constructor and isinstance(one, ast.FunctionDef) and one.name == "__init__":
            shown = signature_text(one, kind.__name__, vars(sys.modules[kind.__module__]))
            parts.append(f"```text\n{shown}\n```")
    return "\n\n".join([*parts, docstring(node)])


def first_sentence(kind: object) -> str:
    """Return the first paragraph of a docstring."""
    return docstring(kind).partition("\n\n")[0]


# ── commands ────────────────────────────────────────────────────────────────


def command_sections(command: click.Command, words: str) -> Iterator[str]:
    """Yield a section for a command, with its arguments and options, and for each of its subcommands."""
    context = click.Context(command, help_option_names=["-h", "--help"])  # a command keeps its help option
    group = command if isinstance(command, click.Group) else None
    rows = [
        (code(_parameter_name(one)), cell(_parameter_type(one)), cell(getattr(one, "help", None) or ""))
        for one in command.params
    ]
    usage = [words, *(piece for piece in command.collect_usage_pieces(context) if piece)]
    help_text = inspect.cleandoc((command.help or "").replace("\b", ""))
    parts = [f"## `{words}`", f"```text\n{' '.join(usage)}\n```", help_text]
    if rows:
        parts.append(table(("argument or option", "value", "meaning"), rows))
    if group is None or words == "mainspring":
        yield "\n\n".join(part for part in parts if part)
    for name in [] if group is None else group.list_commands(context):
        below = group.get_command(context, name) if group is not None else None
        if below is not None:
            yield from command_sections(below, f"{words} {name}")


def _parameter_name(one: click.Parameter) -> str:
    return ", ".join(one.opts) if isinstance(one, click.Option) else (one.name or "").upper()


def _parameter_type(one: click.Parameter) -> str:
    """Return what value an option takes, and how often: a choice of words, a kind of value, or nothing for a flag."""
    if isinstance(one, click.Option) and one.is_flag:
        return ""
    kind = one.metavar or one.type.name
    if isinstance(one.type, click.Choice):
        kind = ", ".join(str(choice) for choice in one.type.choices)
    elif not isinstance(one, click.Option):
        kind = one.type.name
    facts = [kind, *(["required"] if one.required else []), *(["several"] if one.multiple or one.nargs != 1 else [])]
    if isinstance(one, click.Option) and one.default is not None and isinstance(one.default, str | int | float):
        facts.append(f"default {one.default}")
    return ", ".join(facts)
