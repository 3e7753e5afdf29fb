"""Move Python files by a table and rewrite every import of them; print the mentions that need a person.

    python tools/move_modules.py moves.tsv             # old path, tab, new path; both relative to the repository's root
    python tools/move_modules.py moves.tsv --dry-run   # only say what would be moved

Imports are found in the syntax tree, so a name in a string or a comment is never taken for one. Dotted names and paths
in strings, comments and documents are rewritten where they name a moved module in full; what is ambiguous is printed.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Files that may mention a module, besides Python files.
DOCUMENTS = ("*.md", "*.toml", "Makefile", "*.sql", "*.lua")
#: Marks a name that has been rewritten, so that a later row of the table does not rewrite it again.
MARK = "\0"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    moves = read_table(options.table)
    if options.dry_run:
        print("\n".join(f"{old} → {new}" for old, new in moves.items()))
        return 0
    move_files(moves)
    modules = {module_name(old): module_name(new) for old, new in moves.items() if old.endswith(".py")}
    for path in tracked_files("*.py"):
        text = path.read_text(encoding="utf-8")
        changed = rewrite_mentions(rewrite_imports(text, modules), modules, moves)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    for path in tracked_files(*DOCUMENTS):
        text = path.read_text(encoding="utf-8")
        changed = rewrite_mentions(text, modules, moves)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return 0


def read_table(path: Path) -> dict[str, str]:
    """Parse `old<TAB>new` lines; raises SystemExit for a line without a tab."""
    moves = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        old, tab, new = line.partition("\t")
        if not tab:
            sys.exit(f"{path}:{number}: write the old path, a tab and the new path")
        moves[old] = new
    return moves


def move_files(moves: dict[str, str]) -> None:
    """Move each file with git and make the folders and package files that the new paths need."""
    for old, new in moves.items():
        target = ROOT / new
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=ROOT, check=True)
    for new in moves.values():
        if not new.endswith(".py"):
            continue
        folder = (ROOT / new).parent
        while (ROOT / "src") in folder.parents and folder != ROOT / "src":
            init = folder / "__init__.py"
            if not init.exists():
                init.touch()
                subprocess.run(["git", "add", str(init)], cwd=ROOT, check=True)
            folder = folder.parent


def module_name(path: str) -> str:
    """Turn a path below the root into the dotted name that imports it."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def tracked_files(*patterns: str) -> Iterator[Path]:
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    for line in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        path = ROOT / line
        if path.is_file():
            yield path


def rewrite_imports(text: str, modules: dict[str, str]) -> str:
    """Give the text with every import statement of a moved module changed to its new name, marked with MARK."""
    lines = text.splitlines(keepends=True)
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in sorted(statements, key=lambda node: node.lineno, reverse=True):
        if (new := new_statement(node, modules)) is None:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first][: node.col_offset]
        tail = lines[last][node.end_col_offset or 0 :]
        indented = ("\n" + head).join(new)
        lines[first : last + 1] = [head + indented + tail]
    return "".join(lines)


def new_statement(node: ast.Import | ast.ImportFrom, modules: dict[str, str]) -> list[str] | None:
    """Give the statements that replace one import; None when it names no moved module."""
    if isinstance(node, ast.Import):
        if not any(alias.name in modules for alias in node.names):
            return None
        return ["import " + ", ".join(_alias(MARK + modules.get(a.name, a.name), a.asname) for a in node.names)]
    if node.level or node.module is None:
        return None
    home = modules.get(node.module, node.module)
    groups: dict[str, list[str]] = {}
    for alias in node.names:
        moved = modules.get(f"{node.module}.{alias.name}")
        if moved is None:
            groups.setdefault(home, []).append(_alias(alias.name, alias.asname))
        else:
            parent, _, base = moved.rpartition(".")
            given = alias.asname or (alias.name if alias.name != base else None)
            groups.setdefault(parent, []).append(_alias(base, given))
    if groups.keys() == {node.module} and home == node.module:
        return None
    return [f"from {MARK}{parent} import {', '.join(names)}" for parent, names in groups.items()]


def _alias(name: str, given: str | None) -> str:
    return name if given is None else f"{name} as {given}"


def rewrite_mentions(text: str, modules: dict[str, str], moves: dict[str, str]) -> str:
    """Give the text with dotted names and paths of moved modules changed, where they name one in full."""
    for old, new in sorted(modules.items(), key=lambda pair: -len(pair[0])):
        if old.count(".") >= 2:  # `mainspring.app` may be anything
            text = re.sub(rf"(?<![\w.\0]){re.escape(old)}(?!\w)", MARK + new, text)
    for old, new in sorted(moves.items(), key=lambda pair: -len(pair[0])):
        short_old, short_new = old.removeprefix("src/mainspring/"), new.removeprefix("src/mainspring/")
        for before, after in ((old, new), (old.removeprefix("src/"), new.removeprefix("src/")), (short_old, short_new)):
            if before.count("/") >= 1:
                text = re.sub(rf"(?<![\w/\0]){re.escape(before)}(?!\w)", MARK + after, text)
    return text.replace(MARK, "")


if __name__ == "__main__":
    sys.exit(main())
