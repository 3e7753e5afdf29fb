"""Print the state diagram into docs/architecture.md, from the table of `rules/lifecycle.py`."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.rules.lifecycle import diagram

DOCUMENT = Path(__file__).parent.parent / "docs" / "architecture.md"


def main() -> None:
    block = f"<!-- diagram:begin -->\n```mermaid\n{diagram()}\n```\n<!-- diagram:end -->"
    text = DOCUMENT.read_text(encoding="utf-8")
    marked = r"<!-- diagram:begin -->.*?<!-- diagram:end -->"
    DOCUMENT.write_text(re.sub(marked, lambda _: block, text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
