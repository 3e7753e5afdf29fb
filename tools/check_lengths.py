"""Print every source file of more than 500 lines and exit with 1 if there is one: it holds more than one concept.

The class `Mainspring` has one method for each verb that users call, with its docstring; its file may be longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 500
LIMITS = {Path("src/mainspring/app/mainspring.py"): 750}
FOLDERS = ("src", "proof", "tests", "bench", "tools", "examples", "servers")


def main() -> int:
    root = Path(__file__).parent.parent
    long = [
        (name, lines, limit)
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines()))
        > (limit := LIMITS.get(name := path.relative_to(root), LIMIT))
    ]
    for name, lines, limit in long:
        print(f"{name}: {lines} lines, at most {limit}")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
