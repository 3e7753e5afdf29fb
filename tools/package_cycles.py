"""Read the imports of a source folder and print every cycle between its first-level packages.

    python tools/package_cycles.py              # exit code 1 if there is a cycle; --list: also every import in it
    python tools/package_cycles.py --modules    # cycles between modules instead

Imports at module level and in functions both count, and are told apart; those under TYPE_CHECKING are part of no cycle.
The root `__init__.py` is left out: a name imported from it is an import of the module that holds the name. Modules
beside the packages are one package, `top`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "mainspring"

Kind = Literal["module", "function", "typing"]
Graph = Mapping[str, set[str]]


class Import(NamedTuple):
    """One module that another imports, by names relative to the root package, and the packages of both."""

    modules: tuple[str, str]
    packages: tuple[str, str]
    kind: Kind
    place: str


def import_statements(nodes: Iterable[ast.AST], kind: Kind = "module") -> Iterator[tuple[ast.stmt, Kind]]:
    """Yield each import statement in the nodes with the kind of its place."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from import_statements(node.body, "typing")
            yield from import_statements(node.orelse, kind)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "module"
            yield from import_statements(ast.iter_child_nodes(node), "function" if is_function else kind)


def targets(node: ast.stmt, package: list[str]) -> Iterator[str]:
    """Yield the dotted names that a statement imports; `package` is where a relative import begins."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        stem = package[: len(package) - node.level + 1] if node.level else []
        yield from (".".join([*stem, *filter(None, [node.module]), alias.name]) for alias in node.names)


def imports_of(source: Path) -> list[Import]:
    """Read every file below `source` and return its imports of other modules there."""
    root, files, trees = source.name, {}, {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        name = ".".join(parts[1:-1] if parts[-1] == "__init__" else parts[1:])
        files[name], trees[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    units = {name: "top" if path.parent == source else name.partition(".")[0] for name, path in files.items()}
    statements = import_statements(trees.pop("", ast.Module([], [])).body)
    homes = {target.rpartition(".")[2]: target for node, _ in statements for target in targets(node, [root])}

    def module_of(target: str) -> str:
        """The module that holds a dotted name, or '' if it is the root or none of ours."""
        first, _, name = target.partition(".")
        if first == root and name in homes and name not in files:
            first, _, name = homes[name].partition(".")
        while name and name not in files:  # the last part names a function or a class
            name = name.rpartition(".")[0]
        return name if first == root else ""

    found = []
    for importer, tree in trees.items():
        package = [root, *importer.split(".")][: None if files[importer].name == "__init__.py" else -1]
        for node, kind in import_statements(tree.body):
            place = f"{files[importer].relative_to(source)}:{node.lineno}"
            for imported in dict.fromkeys(map(module_of, targets(node, package))):
                if imported not in ("", importer):
                    found.append(Import((importer, imported), (units[importer], units[imported]), kind, place))
    return found


def graph_of(ends: Iterable[tuple[str, str]]) -> Graph:
    """Build a graph of what imports what; what imports itself is left out."""
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, imported in ends:
        graph[importer].update({imported} - {importer})
    return graph


def reachable(graph: Graph, start: str) -> dict[str, str]:
    """Map all that is imported from `start` on to the one before it on a shortest way."""
    before: dict[str, str] = {}
    border = deque([start])
    while border:
        importer = border.popleft()
        for imported in sorted(graph.get(importer, set()) - set(before)):
            before[imported] = importer
            border.append(imported)
    return before


def cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Group the members that all import one another, directly or through others."""
    reach = {node: reachable(graph, node) for node in graph}
    return sorted({tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in graph if a in reach[a]})


def way_around(graph: Graph, start: str) -> list[str]:
    """Find a shortest way from a member of a cycle back to it."""
    before = reachable(graph, start)
    way = [start, before[start]]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=SOURCE)
    parser.add_argument("--modules", action="store_true", help="cycles between modules instead of packages")
    parser.add_argument("--list", action="store_true", help="print every import between members of a cycle")
    options = parser.parse_args(arguments)
    what = "modules" if options.modules else "packages"
    imports = [(one, one.modules if options.modules else one.packages) for one in imports_of(options.src)]
    kinds = Counter(one.kind for one, _ in imports)
    graph = graph_of(ends for one, ends in imports if one.kind != "typing")
    groups = cycles(graph)
    at_start = len(cycles(graph_of(ends for one, ends in imports if one.kind == "module")))
    print(f"imports: {kinds['module']} at module level, {kinds['function']} in functions, {kinds['typing']} for types")
    print(f"cycles between {what}: {len(groups)} (by imports at module level alone: {at_start}); goal 0")
    for group in groups:
        way = min((way_around(graph, start) for start in group), key=len)
        print(f"\n{len(group)} {what}: {' '.join(group)}\nshortest: {' → '.join(way)}")
        for one, ends in imports:
            is_inside = set(ends) <= set(group) if options.list else ends in pairwise(way)
            if is_inside and ends[0] != ends[1] and one.kind != "typing":
                print(f"  {one.kind:9} {one.place}: {' → '.join(one.modules)}")
    return 1 if groups else 0


if __name__ == "__main__":
    sys.exit(main())
