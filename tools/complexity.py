"""Read a source folder and print how many of its functions are complex, by the count of `radon cc`.

    python tools/complexity.py                  # exit code 1 above a goal; --src DIR: another folder

Counted are functions and methods as `radon cc` lists them: decisions in a nested function do not count, `assert` does.
Needs `pip install radon`. Files of more than LONG_FILE lines are listed as well; there is no goal for them.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "mainspring"
#: A function is complex above the first count, and too complex above the second.
COMPLEX, TOO_COMPLEX = 10, 20
MAX_COMPLEX_PERCENT = 3.5
MAX_TOO_COMPLEX = 5
LONG_FILE = 450


class Function(NamedTuple):
    """One function or method and its cyclomatic complexity."""

    complexity: int
    place: str
    name: str


def functions_of(source: Path) -> list[Function]:
    """Measure every function below `source`, the most complex first."""
    visit = import_module("radon.complexity").cc_visit
    found = [
        Function(block.complexity, f"{path.relative_to(source)}:{block.lineno}", block.fullname)
        for path in sorted(source.rglob("*.py"))
        for block in visit(path.read_text(encoding="utf-8"))
        if block.letter in "FM"
    ]
    return sorted(found, key=lambda one: (-one.complexity, one.place))


def long_files(source: Path) -> list[tuple[int, str]]:
    """List the files of more than LONG_FILE lines, the longest first."""
    lengths = [(len(path.read_text(encoding="utf-8").splitlines()), path) for path in source.rglob("*.py")]
    return sorted(
        ((lines, str(path.relative_to(source))) for lines, path in lengths if lines > LONG_FILE), reverse=True
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=SOURCE)
    source = parser.parse_args(arguments).src
    functions = functions_of(source)
    above = [one for one in functions if one.complexity > COMPLEX]
    far_above = [one for one in above if one.complexity > TOO_COMPLEX]
    percent = 100 * len(above) / len(functions) if functions else 0.0
    mean = sum(one.complexity for one in functions) / len(functions) if functions else 0.0
    print(f"radon {version('radon')}: {len(functions)} functions, mean {mean:.2f}")
    print(f"over {COMPLEX}: {len(above)} ({percent:.1f} %); goal at most {MAX_COMPLEX_PERCENT} %")
    print(f"over {TOO_COMPLEX}: {len(far_above)}; goal at most {MAX_TOO_COMPLEX}")
    print("".join(f"  {one.complexity:3} {one.place} {one.name}\n" for one in above), end="")
    files = long_files(source)
    print(f"files over {LONG_FILE} lines: {len(files)}")
    print("".join(f"  {lines:3} {name}\n" for lines, name in files), end="")
    return 0 if percent <= MAX_COMPLEX_PERCENT and len(far_above) <= MAX_TOO_COMPLEX else 1


if __name__ == "__main__":
    sys.exit(main())
