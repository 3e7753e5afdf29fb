"""The reference is written from the code, and has every public name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import mainspring
from mainspring.cli.main import mainspring as command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
NAMES = (ROOT / "tests" / "fixtures" / "public_names.txt").read_text(encoding="utf-8").splitlines()
#: Methods of a task that only Mainspring itself calls.
INTERNAL = {"new_run", "gates", "handler", "with_options", "enqueue_many_blocking", "connection_of"}
#: Attributes of a task that its decorator's page need not explain.
OF_A_FUNCTION = {"app", "function", "name", "options", "signature"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from print_reference import reference
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return reference()


def test_the_reference_is_up_to_date(pages: dict[str, str]) -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert set(stored) == set(pages)
    wrong = [name for name, text in pages.items() if stored[name] != text]
    assert wrong == [], "write it anew: python tools/print_reference.py --write"


@pytest.mark.parametrize("name", [name for name in mainspring.__all__ if not name.startswith("_")])
def test_every_public_name_has_a_section(pages: dict[str, str], name: str) -> None:
    assert any(f"## `{name}`" in text or f"| `{name}` |" in text for text in pages.values())


@pytest.mark.parametrize(
    ("owner", "shown", "page"),
    [
        ("Mainspring", "ms", "app.md"),
        ("Context", "ctx", "tasks.md"),
        ("RunHandle", "handle", "tasks.md"),
        ("Task", "send", "tasks.md"),
    ],
)
def test_every_public_method_and_attribute_is_shown(pages: dict[str, str], owner: str, shown: str, page: str) -> None:
    found = {match[1] for line in NAMES if (match := re.match(rf"member {owner}\.(\w+)", line))}
    assert found
    elsewhere = pages["schedules.md"] + pages["tasks.md"] + pages["app.md"]
    for name in found - INTERNAL - OF_A_FUNCTION:
        text = elsewhere if name in ("task", "cron", "every", "at", "from_config") else pages[page]
        assert re.search(rf"`?@?{shown}\.{name}\b|### `{name}`|`{name}`|Mainspring\.{name}", text), name


def test_every_command_option_key_and_route_is_shown(pages: dict[str, str]) -> None:
    for line in NAMES:
        if match := re.match(r"command (mainspring[\w -]*?) option (\S+)", line):
            section = pages["command-line.md"].split(f"## `{match[1]}`\n", 1)[1].split("\n## ")[0]
            assert f"`{match[2].replace('/', ', ')}`" in section, line
        elif (match := re.match(r"key ([\w.]+)$", line)) and not line.startswith("key alias"):
            assert f"| `{match[1]}` |" in pages["configuration.md"], line
        elif match := re.match(r"route schema (\w+)\.(\w+)$", line):
            section = pages["rest.md"].split(f"## {match[1]}\n", 1)[1].split("\n## ")[0]
            assert f"| `{match[2]}`" in section, line


def _options(found: click.Command, words: str) -> Iterator[tuple[str, click.Option]]:
    for one in found.params:
        if isinstance(one, click.Option):
            yield f"{words} {one.opts[0]}", one
    if isinstance(found, click.Group):
        for name in found.list_commands(click.Context(found)):
            below = found.get_command(click.Context(found), name)
            assert below is not None
            yield from _options(below, f"{words} {name}")


def test_every_option_of_a_command_has_a_help_text() -> None:
    assert [name for name, option in _options(command, "mainspring") if not option.help] == []


def test_every_link_of_the_reference_leads_somewhere(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for link in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = link.partition("#")
            target = (FOLDER / path).resolve() if path else FOLDER / name
            assert target.exists(), (name, link)
            if anchor and target.parent == FOLDER:
                heads = re.findall(r"^#+ (.*)$", pages[target.name], re.M)
                assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, link
