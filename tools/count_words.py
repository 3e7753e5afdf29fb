"""Count the words in the docstrings and comments of a source folder, and print how many of them are dialect.

    python tools/count_words.py                 # a table by package; exit code 1 above a goal
    python tools/count_words.py --list          # also the place of every word that counts against a goal
    python tools/count_words.py --src DIR       # another folder, for example an older checkout

Counted are Python docstrings and comments, and `--` comments in .sql and .lua files; text that users see is not.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "mainspring"
#: Goals over the whole folder.
MAX_PERSONS_PER_1000_WORDS = 1.0
MAX_SO_MANY = 3

WORD = re.compile(r"[A-Za-z][\w'’-]*")
PERSON = re.compile(r"\b(who|whoever|whom|nobody|somebody|everybody)\b", re.IGNORECASE)
SO_MANY = re.compile(r"\bso\s+(many|long|soon|often|much)\b", re.IGNORECASE)
#: Instructions to tools, up to the next comment in the same line.
PRAGMA = re.compile(r"#\s*(noqa|type:|pragma|ruff:|fmt:|mypy:)[^#]*")
FOREIGN_COMMENT = re.compile(r"(?:^|\s)--+(?:\s+(.*))?$")


@dataclass
class Passage:
    """A docstring, or comments on consecutive lines, with the line where it begins."""

    line: int
    text: str


@dataclass
class Count:
    """The numbers of one package, and `path:line: phrase` for each phrase that counts against a goal."""

    words: int = 0
    persons: int = 0
    so_many: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def persons_per_1000(self) -> float:
        return 1000 * self.persons / self.words if self.words else 0.0


def docstrings(code: str) -> Iterator[Passage]:
    """Yield the docstring of the module and of every class and function in it."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            text = first.value.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None
            if isinstance(text, str):
                yield Passage(first.lineno, text)


def comments(code: str) -> Iterator[Passage]:
    """Yield comments of Python code; consecutive lines are one passage, for a phrase may be broken over two."""
    last: tuple[int, int] | None = None
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        text = PRAGMA.sub("", token.string).lstrip("#:! ")
        if last is not None and (row - 1, column) != last:
            yield Passage(last[0] - len(lines) + 1, "\n".join(lines))
            lines = []
        last = (row, column)
        lines.append(text)
    if last is not None:
        yield Passage(last[0] - len(lines) + 1, "\n".join(lines))


def foreign_comments(code: str) -> Iterator[Passage]:
    """Yield the `--` comments of SQL or Lua; text that other lines separate is separated by a full stop."""
    texts = [FOREIGN_COMMENT.search(line) for line in code.splitlines()]
    yield Passage(1, "\n".join((found[1] or "") if found else "." for found in texts))


def passages(path: Path) -> Iterator[Passage]:
    """Yield all prose of one file."""
    code = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from docstrings(code)
        yield from comments(code)
    else:
        yield from foreign_comments(code)


def count(source: Path) -> dict[str, Count]:
    """Count every file below `source`; the keys are first-level packages, modules beside them are '(top level)'."""
    counts: dict[str, Count] = defaultdict(Count)
    for path in sorted(one for kind in ("*.py", "*.sql", "*.lua") for one in source.rglob(kind)):
        place = path.relative_to(source)
        found = counts[place.parts[0] if len(place.parts) > 1 else "(top level)"]
        for passage in passages(path):
            found.words += len(WORD.findall(passage.text))
            for phrase in (*PERSON.finditer(passage.text), *SO_MANY.finditer(passage.text)):
                is_person = phrase.re is PERSON
                found.persons += is_person
                found.so_many += not is_person
                line = passage.line + passage.text.count("\n", 0, phrase.start())
                found.places.append(f"{place}:{line}: {' '.join(phrase[0].split())}")
    return counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=SOURCE)
    parser.add_argument("--list", action="store_true", help="print the place of every phrase")
    options = parser.parse_args(arguments)
    counts = count(options.src)
    total = Count()
    print(f"{'package':14}{'words':>8}{'who…':>8}{'per 1,000':>11}{'so many…':>10}")
    for name, found in [*sorted(counts.items()), ("all", total)]:
        print(f"{name:14}{found.words:>8}{found.persons:>8}{found.persons_per_1000:>11.2f}{found.so_many:>10}")
        total.words += found.words
        total.persons += found.persons
        total.so_many += found.so_many
    if options.list:
        print("\n".join(place for _, found in sorted(counts.items()) for place in found.places))
    met = total.persons_per_1000 <= MAX_PERSONS_PER_1000_WORDS and total.so_many <= MAX_SO_MANY
    print(f"goal: at most {MAX_PERSONS_PER_1000_WORDS:g} per 1,000 and {MAX_SO_MANY}: {'met' if met else 'not met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
