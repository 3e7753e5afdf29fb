"""Read the imports of a source folder and print a Mermaid diagram of its first-level packages.

    python tools/print_packages.py              # exit code 1 if packages import one another in a circle
    python tools/print_packages.py --write      # also put it into docs/architecture.md, between its two markers

An arrow goes from the package that imports; a dotted one stands for imports in functions alone. Left out are arrows
that follow from others, imports for type checkers, and the root `__init__.py`. A circle is drawn as one box, `a_and_b`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from package_cycles import SOURCE, Graph, cycles, graph_of, imports_of, reachable

DOCUMENT = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- packages:begin -->", "<!-- packages:end -->"
#: Between the packages of a circle; an id in Mermaid may hold no signs.
AND = "_and_"


def reduced(graph: Graph) -> list[tuple[str, str]]:
    """List the edges of a graph without circles, without those that a longer way shows as well."""
    below = {node: set(reachable(graph, node)) for node in graph}
    return sorted(
        (a, b)
        for a, direct in graph.items()
        for b in direct
        if not any(b in below.get(other, ()) for other in direct - {b})
    )


def diagram(source: Path = SOURCE) -> str:
    """Draw the packages below `source` in Mermaid's language; the same source gives the same text."""
    imports = [one for one in imports_of(source) if one.kind != "typing"]
    packages = sorted({path.relative_to(source).parts[0] for path in source.glob("*/**/*.py")})
    box = {name: name for name in (*packages, "top")}
    for group in cycles(graph_of(one.packages for one in imports)):
        box |= dict.fromkeys(group, AND.join(group))
    ends = [((box[one.packages[0]], box[one.packages[1]]), one.kind) for one in imports]
    at_start = {pair for pair, kind in ends if kind == "module"}
    arrows = reduced(graph_of(pair for pair, _ in ends))
    lonely = {box[name] for name in packages} - {name for pair in arrows for name in pair}
    lines = [f"    {name}" for name in sorted(lonely)]
    lines += [f"    {a} {'-->' if (a, b) in at_start else '-.->'} {b}" for a, b in arrows]
    named = ['    top["modules beside the packages"]'] if any("top" in pair for pair in arrows) else []
    return "\n".join(["flowchart TD", *named, *lines])


def block(source: Path = SOURCE) -> str:
    """Wrap the diagram as it stands in docs/architecture.md, markers included."""
    return f"{BEGIN}\n```mermaid\n{diagram(source)}\n```\n{END}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=SOURCE)
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, help="a page with the two markers")
    options = parser.parse_args(arguments)
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            sys.exit(f"{options.write} has no lines {BEGIN} and {END}")
        marked = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
        options.write.write_text(re.sub(marked, lambda _: block(options.src), text, flags=re.S), encoding="utf-8")
    drawn = diagram(options.src)
    print(drawn)
    return 1 if AND in drawn else 0


if __name__ == "__main__":
    sys.exit(main())
