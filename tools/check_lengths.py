"""Print every source file of more than 500 lines and exit with 1 if there is one: it holds more than one concept."""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 500
FOLDERS = ("src", "proof", "tests", "bench", "tools", "examples", "servers")


def main() -> int:
    root = Path(__file__).parent.parent
    long = [
        (path.relative_to(root), lines)
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
    ]
    for path, lines in long:
        print(f"{path}: {lines} lines, at most {LIMIT}")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
