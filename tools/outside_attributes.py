"""Read the engine's source and print every assignment to an attribute of a service object by other code than its own.

    python tools/outside_attributes.py              # exit code 1 if there is one; --src DIR: another folder

A service object is an instance of a class in UNITS that is no struct, dataclass, enum or protocol; its attributes are
what its class body and its `__init__` assign. An assignment `thing.attribute = …` in UNITS is printed if a service
object has an attribute of that name. Not printed are
- `self.attribute` and `cls.attribute`,
- fields of a struct, where the name or annotation of `thing` says that it is one: `claim.trust`, `one: Claim`,
- attributes of a private class in its own module, and private attributes in a class that has them (for `copy`).
Fields of the struct `Attempt`, assigned anywhere outside its module, are printed apart; the exit code ignores them.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "mainspring"
#: First-level packages, and modules of that name as they were before there were packages.
UNITS = ("engine", "runtime", "executors", "app", "host")
VALUES = {"Struct", "NamedTuple", "TypedDict", "Protocol", "Enum", "StrEnum", "IntEnum", "dataclass"}
SHARED = "Attempt"


@dataclass
class Class:
    """A class of the source: where it is, what its instances hold, and the names of its bases and decorators."""

    name: str
    module: Path
    attributes: set[str]
    bases: set[str]


@dataclass
class Module:
    """A parsed file, with the words of its annotations by annotated name, and the class around each node."""

    path: Path
    tree: ast.Module
    annotated: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    class_of: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                self.annotated[name].update(re.findall(r"\w+", ast.unparse(node.annotation)))
            if isinstance(node, ast.ClassDef):
                self.class_of |= {id(one): node.name for one in ast.walk(node)}


def classes_of(module: Module) -> Iterator[Class]:
    """Yield the classes of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            own: list[ast.expr] = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            own += [target for one in node.body if isinstance(one, ast.Assign) for target in one.targets]
            inits = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            held = {one.id for one in own if isinstance(one, ast.Name)}
            held |= {name for init in inits for base, name, _ in assigned(init) if base == "self"}
            bases = {ast.unparse(one).partition("(")[0] for one in [*node.bases, *node.decorator_list]}
            bases = {one.partition("[")[0].rpartition(".")[2] for one in bases}
            yield Class(node.name, module.path, held, bases)


def value_names(classes: list[Class]) -> set[str]:
    """The names of the classes that are values themselves or by what they derive from."""
    names: set[str] = set()
    while more := {one.name for one in classes if one.bases & (VALUES | names)} - names:
        names |= more
    return names


def assigned(tree: ast.AST) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield base, attribute and node of every assignment to an attribute, in whatever statement, and by `setattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node.value), node.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            base, name, _ = node.args
            if isinstance(name, ast.Constant):
                yield ast.unparse(base), str(name.value), node


def measure(source: Path) -> tuple[list[str], list[str]]:
    """Return the assignments to service objects, and those to fields of `Attempt`, as `path:line: base.attribute`."""
    files = sorted(source.rglob("*.py"))
    modules = [Module(path.relative_to(source), ast.parse(path.read_text(encoding="utf-8"))) for path in files]
    classes = [one for module in modules for one in classes_of(module)]
    value = value_names(classes)
    values = {one.name: one.attributes for one in classes if one.name in value}
    services = [one for one in classes if one.name not in value and is_watched(one.module)]
    names = {name for one in services for name in one.attributes}
    home = {one.module for one in classes if one.name == SHARED}
    outside, shared = [], []
    for module in modules:
        private = {n for one in classes if one.module == module.path and one.name[0] == "_" for n in one.attributes}
        for base, name, node in sorted(assigned(module.tree), key=lambda one: one[2].lineno):
            if base in ("self", "cls"):
                continue
            last = re.split(r"\W+", base)[-1]
            kinds = {last.title().replace("_", ""), *module.annotated[base]} & set(values)
            fields = {name for kind in kinds for name in values[kind]}
            has_it = {one.name for one in services if name in one.attributes}
            is_private = name in private or (name[0] == "_" and module.class_of.get(id(node)) in has_it)
            text = f"{module.path}:{node.lineno}: {base}.{name}"
            if name in values.get(SHARED, ()) and module.path not in home and (SHARED in kinds or "[" in base):
                shared.append(text)
            elif is_watched(module.path) and name in names - fields and not is_private:
                outside.append(text)
    return outside, shared


def is_watched(path: Path) -> bool:
    return path.parts[0].removesuffix(".py") in UNITS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=SOURCE)
    outside, shared = measure(parser.parse_args(arguments).src)
    print(f"attributes of service objects assigned from outside: {len(outside)}; goal 0")
    print("".join(f"  {one}\n" for one in outside), end="")
    print(f"{SHARED} fields written outside: {len(shared)}")
    print("".join(f"  {one}\n" for one in shared), end="")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
